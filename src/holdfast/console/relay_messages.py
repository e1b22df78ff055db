"""Messages at a relay: lists by every way to look for one, and one with all that happened to it. Never what it says."""

import json
from typing import Any, Literal

import msgspec

from holdfast.console.listing import PAGE_ROWS, Position, cut
from holdfast.console.relay_names import SQL, names
from holdfast.protocol.envelope import MESSAGE_KIND
from holdfast.protocol.receipt import RECEIPT_KIND
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import is_hex, shown
from holdfast.store.engine import Transaction, Value

SEQ_MAX = 2**63 - 1
DELIVERIES_ROWS = 100  # of one message, on one page
DECISIONS_MAX = 200
LOOKED_THROUGH_MAX = 20_000  # messages, for those of a mesh or a sender; the next page goes on behind them
EVENT_ID_CHARACTERS = 64


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages."""

    q: str | None = None  # an id of any kind
    mesh: str | None = None
    sender: str | None = None
    recipient: str | None = None
    topic: str | None = None
    state: Literal["waiting"] | None = None
    kind: Literal["message", "receipt"] = "message"
    order: Literal["newest", "oldest"] = "newest"
    at: Position | None = None


class Listed(msgspec.Struct, frozen=True):
    """A message in a list."""

    seq: int
    message_id: str
    client_message_id: str
    mesh: str
    sender: str
    kind: int
    destination_kind: str
    destination_ref: str
    size: int
    accepted_at: int
    outcomes: tuple[tuple[str, int], ...]


class Rung(msgspec.Struct, frozen=True):
    """Something that happened to a message, and to whose copy of it."""

    at: int
    what: str
    whose: str | None = None
    note: str = ""
    seq: int | None = None


def page(transaction: Transaction, query: Query) -> tuple[list[Listed], int | None]:
    """A page of messages, and where the next one begins."""
    found = [seq for (seq,) in transaction.rows(SQL[_way(query)], _parameters(query))]
    seqs, last = cut(found)
    if last is None and _sought(query) in ("mesh", "sender"):
        last = _looked_through(transaction, query)
    return described(transaction, list(seqs)), last


def _looked_through(transaction: Transaction, query: Query) -> int | None:
    """Where to go on looking for messages that no index finds; None where the end was reached."""
    name = "oldest_looked_through" if query.order == "oldest" else "newest_looked_through"
    parameters = _parameters(query)
    ((count, last),) = transaction.rows(SQL[name], {key: parameters[key] for key in ("at", "looked_through")})
    return last if count == LOOKED_THROUGH_MAX else None


_WAYS = {
    "all": ("newest", "oldest"),
    "mesh": ("newest_of_mesh", "oldest_of_mesh"),
    "sender": ("newest_of_mesh", "oldest_of_mesh"),
    "recipient": ("newest_of_recipient", "oldest_of_recipient"),
    "topic": ("newest_of_topic", "oldest_of_topic"),
    "waiting": ("newest_in_queues", "oldest_in_queues"),
    "waiting_for": ("newest_waiting_for", "oldest_waiting_for"),
}
"""By what is looked for: the statement that finds the newest first, and the one that finds the oldest."""


def _way(query: Query) -> str:
    """The statement whose index finds this page."""
    return _WAYS[_sought(query)][query.order == "oldest"]


def _sought(query: Query) -> str:
    if any((query.sender, query.recipient, query.topic)) and query.mesh is None:
        raise Refused(Refusal.MALFORMED, "choose a mesh first: members and topics are known by their mesh")
    if sum(map(bool, (query.sender, query.recipient, query.topic))) > 1:
        raise Refused(Refusal.MALFORMED, "look for a sender, for a recipient or for a topic, not for several at once")
    if query.state == "waiting":
        if query.recipient:
            return "waiting_for"
        if query.mesh is not None:
            raise Refused(Refusal.MALFORMED, "what waits is shown for the whole relay, or for one recipient")
        return "waiting"
    return next((name for name in ("sender", "recipient", "topic", "mesh") if getattr(query, name)), "all")


def _parameters(query: Query) -> dict[str, Value]:
    start = SEQ_MAX if query.order == "newest" else 0
    return {
        "at": start if query.at is None else query.at,
        "kind": MESSAGE_KIND if query.kind == "message" else RECEIPT_KIND,
        "is_receipt": int(query.kind == "receipt"),
        "limit": PAGE_ROWS + 1,
        "looked_through": LOOKED_THROUGH_MAX,
        "mesh": query.mesh,
        "sender": query.sender,
        "recipient": query.recipient,
        "topic": query.topic,
    }


def described(transaction: Transaction, seqs: list[int]) -> list[Listed]:
    """What a list shows of messages, in the order of their positions as given; one that is gone is left out."""
    if not seqs:
        return []
    wanted = [(seq,) for seq in seqs]
    outcomes: dict[int, list[tuple[str, int]]] = {}
    for seq, state, count in transaction.lookup(SQL["outcomes"], ("seq",), wanted):
        outcomes.setdefault(seq, []).append((state, count))
    rows = {row[0]: row for row in transaction.lookup(SQL["messages"], ("seq",), wanted)}
    return [Listed(*(*rows[seq], tuple(sorted(outcomes.get(seq, ()))))) for seq in seqs if seq in rows]


def find(transaction: Transaction, name: str) -> list[str]:
    """The messages that an id may mean: the relay's own, an event's, or a caller's."""
    is_event = is_hex(name) and len(name) == EVENT_ID_CHARACTERS
    parameters: dict[str, Value] = {"name": name, "event_id": bytes.fromhex(name) if is_event else b""}
    found = [str(row[0]) for row in transaction.rows(SQL["find_message"], parameters)]
    return found or [str(row[0]) for row in transaction.rows(SQL["find_client_message"], {"name": name})]


def message(transaction: Transaction, message_id: str, at: str = "") -> dict[str, Any]:
    """One message: its envelope, its copies, and everything that happened to them."""
    rows = transaction.rows(SQL["message"], {"message_id": message_id})
    if not rows:
        raise Refused(Refusal.NOT_FOUND, f"there is no message {shown(message_id)} here; it may have been pruned")
    names_of_row = (
        *("seq", "message_id", "client_message_id", "mesh", "sender", "kind", "destination_kind", "destination_ref"),
        *("size", "accepted_at", "expires_at", "event_id", "event"),
    )
    found = dict(zip(names_of_row, rows[0], strict=True))
    event = found.pop("event")
    copies, last = cut(
        transaction.rows(SQL["deliveries"], {"seq": found["seq"], "at": at, "limit": DELIVERIES_ROWS + 1}),
        DELIVERIES_ROWS,
    )
    states = transaction.rows(SQL["delivery_states"], {"seq": found["seq"]})
    people = [(found["mesh"], found["sender"]), (found["mesh"], found["destination_ref"])]
    return {
        "message": found,
        "envelope": envelope(event),
        "copies": copies,
        "states": [(state, count) for state, count, _ in states],
        "receipted": sum(receipted or 0 for _, _, receipted in states),
        "following": None if last is None else last[0],
        "rungs": _rungs(transaction, found, copies),
        "names": names(transaction, [*people, *((found["mesh"], copy[0]) for copy in copies)]),
    }


def _rungs(transaction: Transaction, found: dict[str, Any], copies: Any) -> list[Rung]:
    rungs = [Rung(found["accepted_at"], "accepted", found["sender"], seq=found["seq"])]
    for row in transaction.rows(SQL["entry"], {"seq": found["seq"]}):
        rungs += [Rung(row[1], outcome, member) for member, outcome in json.loads(row[3]) if outcome != "queued"]
    reasons: dict[tuple[str, str | None], tuple[int, str]] = {}
    wanted = {"message_id": found["message_id"], "limit": DECISIONS_MAX}
    for seq, at, kind, recipient, destination_kind, operator, reason in transaction.rows(SQL["decisions"], wanted):
        if recipient is None and destination_kind == "moderation":
            rungs.append(Rung(at, "taken down", None, f"by {operator}: {reason or ''}", seq))
        reasons[kind, recipient] = (seq, reason or "")
    for member, state, _, closed_at, was_stored, receipted_at, _ in copies:
        if closed_at is not None:
            seq, reason = reasons.get((state, member), (None, ""))
            waited = {1: "it had waited here", 0: "straight through"}.get(was_stored, "")
            rungs.append(Rung(closed_at, state, member, reason or waited, seq))
        if receipted_at is not None:
            rungs.append(Rung(receipted_at, "receipt", member, "signed by the recipient"))
    return sorted(rungs, key=lambda rung: (rung.at, rung.what != "accepted"))


def envelope(event: bytes) -> str:
    """What the relay sees of a message, as JSON for people; the sealed body is counted and left out."""
    try:
        found = json.loads(event)
        sealed = len(found["content"])
        found["content"] = f"(sealed: {sealed:,} characters that the relay cannot read, and this page does not show)"
    except (ValueError, KeyError, TypeError):
        return "(the disk has changed these bytes: they are no event any more)"
    return json.dumps(found, indent=2, ensure_ascii=False)
