"""What an owner can search, once more: each message looked at by itself, its words taken letter by letter."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.protocol import payload
from holdfast.protocol.history import Kind
from tests.pipeline.tables.memory_lake import Part, Rows


def words(text: str) -> list[str]:
    """Runs of letters, digits and marks, in lower case, whether a letter was written with its marks or before them."""
    whole = unicodedata.normalize("NFC", text).lower()
    spaced = "".join(one if unicodedata.category(one)[0] in "LNM" else " " for one in whole)
    return spaced.split()


@dataclass(frozen=True)
class Look:
    """A batch of one device, and what its tables held when it was read."""

    part: Part
    inbox: Rows
    sent: Rows


def search_message(looks: Sequence[Look]) -> Rows:
    """Every message that has words in it, when it can be read for the first time; once, however often it is told of."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    arrived: dict[bytes | None, int] = {}
    for look in looks:
        entries = look.part.entries
        arrived |= {entry.event_id: entry.seq for entry in entries if entry.kind is Kind.STORED}
        came = {arrived[entry.event_id] for entry in entries if entry.kind in (Kind.STORED, Kind.OPENED)}
        for row in look.inbox:
            if row["seq"] in came:
                _add(found, row, "received", row["received_at"], row["sender"], row["body"])
        went = {entry.seq for entry in entries if entry.kind is Kind.ENQUEUED}
        for row in look.sent:
            if row["seq"] in went and row["destination_kind"] in ("dm", "topic") and row["blob"] is not None:
                body = payload.decode(row["blob"]).body
                _add(found, row, "sent", row["enqueued_at"], row["destination_ref"], body)
    return list(found.values())


def _add(
    found: dict[tuple[str, ...], dict[str, Any]],
    row: Mapping[str, Any],
    direction: str,
    at: datetime,
    peer: str,
    body: bytes | None,
) -> None:
    try:
        text = (body or b"").decode()
    except UnicodeDecodeError:
        return
    key = (row["origin"], direction, peer, row["client_message_id"])
    if not words(text) or key in found:
        return
    topic = row["topic"] if direction == "received" else peer if row["destination_kind"] == "topic" else None
    found[key] = {
        **{name: row[name] for name in ("origin", "log_id", "seq", "client_message_id")},
        "at": at,
        "direction": direction,
        "peer": peer,
        "peer_name": row.get("sender_name"),
        "topic": topic,
        "mesh": "mesh-1",
        "message_id": row["broker_message_id"],
        "text": text,
        "words": len(words(text)),
        "day": at.date(),
    }


def search_posting(messages: Rows) -> Rows:
    """How often each word is in each message."""
    return [
        {"word": word, "origin": one["origin"], "log_id": one["log_id"], "seq": one["seq"], "times": times}
        for one in messages
        for word, times in Counter(words(one["text"])).items()
    ]
