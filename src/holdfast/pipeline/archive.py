"""Everything the lake has about one message, even if relay and devices have deleted it since."""

from collections.abc import Mapping
from typing import Any

from holdfast.pipeline.shelf import Shelf

_MESSAGES = """
    SELECT DISTINCT message_id FROM {rows}
    WHERE (message_id = $1 OR client_message_id = $1) AND message_id IS NOT NULL ORDER BY message_id
"""
# Deliveries do not repeat the sender's own id, so they are found by the relay's.
_ENTRIES = """
    SELECT origin, log_id, seq, "at", kind, mesh, message_id, client_message_id, sender, recipient, recipients,
        destination_kind, destination_ref, event_id, size, was_stored, reason
    FROM {rows} WHERE client_message_id = $1 OR list_contains($2, message_id) ORDER BY "at", origin, log_id, seq
"""
_OPEN = (
    "SELECT *, 'open' AS outcome FROM {rows} WHERE list_contains($1, message_id) ORDER BY origin, message_id, recipient"
)
_REOPENED = "SELECT *, 'reopened' AS outcome FROM {rows} WHERE list_contains($1, message_id) ORDER BY origin, message_id, recipient"
_CLOSED = "SELECT * FROM {rows} WHERE list_contains($1, message_id) ORDER BY origin, message_id, recipient"
_RECEIPTS = 'SELECT * FROM {rows} WHERE list_contains($1, event_id) ORDER BY "at", seq, line'

_FATES = {"message_fate": _CLOSED, "fate_repeated": _CLOSED, "fate_open": _OPEN, "fate_reopened": _REOPENED}
"""The tables that tell what became of a delivery. A restore undoes a closing: such a delivery is open again, and closed once more."""

_BESIDE = (*_FATES, "receipt")
"""Tables that a trace reads beside `history`; one whose files have been removed since is left out."""


def trace(shelf: Shelf, name: str) -> dict[str, Any] | None:
    """The entries, fates and receipts of the message with this id, the relay's or the sender's own; None if no history has it."""
    versions = shelf.last_run().versions
    found = shelf.query("history", versions.get("history"), _MESSAGES, [name])
    message_ids = [one["message_id"] for one in found]
    entries = shelf.query("history", versions.get("history"), _ENTRIES, [name, message_ids])
    if not entries:
        return None
    removed = shelf.removed({one: versions[one] for one in _BESIDE if one in versions})
    there = {one: version for one, version in versions.items() if one not in removed}
    event_ids = sorted({one["event_id"] for one in entries if one["event_id"] is not None and _is_send(one)})
    return {
        "message_ids": message_ids,
        "entries": entries,
        "fates": [
            one for table, sql in _FATES.items() for one in shelf.query(table, there.get(table), sql, [message_ids])
        ],
        "receipts": shelf.query("receipt", there.get("receipt"), _RECEIPTS, [event_ids]),
        "removed": sorted(removed),
    }


def _is_send(entry: Mapping[str, Any]) -> bool:
    return entry["kind"] in ("accepted", "enqueued", "relayed", "stored")
