"""Closing deliveries: the row is closed, the queue's count reduced, and the reason appended to the history, together."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.protocol.delivery import TRANSITIONS, Signal, State, appends_entry
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.tables import move
from holdfast.store import history
from holdfast.store.engine import Transaction, Value
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "closing.sql")
_CLOSED = ("mesh", "member", "seq", "state", "closed_at", "was_stored")
_NEWS = frozenset(state.value for state in State if appends_entry(state, Signal.ACKNOWLEDGED))


class Delivery(msgspec.Struct, frozen=True):
    """A row of a queue, with its message's sender and ids; these are None if the message is gone."""

    mesh: str
    member: str
    seq: int
    message_id: str
    is_receipt: int
    sender: str | None
    client_message_id: str | None
    event_id: bytes | None


class Acknowledged(msgspec.Struct, frozen=True):
    """The result of an acknowledgement: positions that are closed, now or before, and positions that are not in its queue."""

    closed: tuple[int, ...]
    unknown: tuple[int, ...]


def close(
    transaction: Transaction,
    now: int,
    rows: Sequence[Delivery],
    signal: Signal,
    *,
    reason: str | None = None,
    was_stored: Mapping[int, bool] | None = None,
) -> None:
    """Close rows for one reason. They must be open; the queries that find them select only open ones.

    `was_stored` tells, by position, whether an acknowledged message had waited for its recipient.
    """
    if not rows:
        return
    state = move(TRANSITIONS, State.OPEN, signal)
    kind, waited = Kind(state.value), was_stored or {}
    entries = history.append(transaction, now, [_draft(row, kind, reason, waited.get(row.seq)) for row in rows])
    # With the entry's time, which may be ahead of the clock: so closing times are in the order of positions.
    _close_rows(transaction, entries[0].at, rows, state.value, waited)
    for (mesh, member), count in Counter((row.mesh, row.member) for row in rows if not row.is_receipt).items():
        transaction.run(_SQL["take_from_queue"], {"mesh": mesh, "member": member, "count": count})


def acknowledge(
    transaction: Transaction, now: int, mesh: str, member: str, was_stored: Mapping[int, bool]
) -> Acknowledged:
    """Close positions that the member has on its disk. Rows that were closed before stay as they are."""
    wanted = [(mesh, member, seq) for seq in sorted(was_stored)]
    found = transaction.lookup(_SQL["rows_of_member"], ("mesh", "member", "seq"), wanted)
    news = [Delivery(*row) for *row, state in found if state in _NEWS]
    close(transaction, now, news, Signal.ACKNOWLEDGED, was_stored=was_stored)
    closed = tuple(seq for _, _, seq, *_ in found)
    return Acknowledged(closed, tuple(sorted(was_stored.keys() - set(closed))))


def expire_queue(transaction: Transaction, now: int, mesh: str, member: str, rows_max: int) -> int:
    """Close expired messages in one member's queue; returns how many."""
    rows = _deliveries(transaction, "expired_messages_of_member", mesh=mesh, member=member, now=now, limit=rows_max)
    close(transaction, now, rows, Signal.TTL_PASSED)
    if len(rows) < rows_max:
        _note_next_expiry(transaction, mesh, member)
    return len(rows)


def expire(transaction: Transaction, now: int, rows_max: int) -> Counter[tuple[str, str]]:
    """Close expired messages in any queue, queue by queue; returns how many, by (mesh, member)."""
    rows: list[Delivery] = []
    looked_through: list[tuple[str, str]] = []
    for mesh, member in transaction.rows(_SQL["due"], {"now": now, "limit": rows_max}):
        left = rows_max - len(rows)
        found = _deliveries(transaction, "expired_of_member", mesh=mesh, member=member, now=now, limit=left)
        rows += found
        if len(found) == left:
            break  # this queue may have more expired messages, so it stays due
        looked_through.append((mesh, member))
    close(transaction, now, rows, Signal.TTL_PASSED)
    for mesh, member in looked_through:
        _note_next_expiry(transaction, mesh, member)
    return Counter((row.mesh, row.member) for row in rows)


def is_due(transaction: Transaction, now: int) -> bool:
    """Whether a message may have expired in some queue."""
    return bool(transaction.rows(_SQL["due"], {"now": now, "limit": 1}))


def drop_queue(transaction: Transaction, now: int, mesh: str, member: str) -> int:
    """Close everything that waits for a revoked member; returns how many rows."""
    rows = _deliveries(transaction, "open_of_member", mesh=mesh, member=member)
    close(transaction, now, rows, Signal.MEMBER_REVOKED)
    return len(rows)


def take_down(transaction: Transaction, now: int, message_id: str, reason: str) -> int:
    """Close all open deliveries of a message; returns how many."""
    rows = _deliveries(transaction, "open_of_message", message_id=message_id)
    close(transaction, now, rows, Signal.TAKEN_DOWN, reason=reason)
    return len(rows)


def quarantine(transaction: Transaction, now: int, mesh: str, member: str, seq: int, reason: str) -> bool:
    """Close a row whose message was damaged on disk; returns whether it was open."""
    found = transaction.lookup(_SQL["rows_of_member"], ("mesh", "member", "seq"), [(mesh, member, seq)])
    rows = [Delivery(*row) for *row, state in found if state == State.OPEN]
    close(transaction, now, rows, Signal.FOUND_CORRUPT, reason=reason)
    return bool(rows)


def _note_next_expiry(transaction: Transaction, mesh: str, member: str) -> None:
    """Store when the next open delivery of a queue expires. Deliveries that are due must be closed before this is called."""
    transaction.run(_SQL["note_next_expiry"], {"mesh": mesh, "member": member})


def _close_rows(
    transaction: Transaction, at: int, rows: Sequence[Delivery], state: str, waited: Mapping[int, bool]
) -> None:
    wanted = [(row.mesh, row.member, row.seq, state, at, _flag(waited.get(row.seq))) for row in rows]
    closed = transaction.lookup(_SQL["close"], _CLOSED, wanted)
    if len(closed) != len(rows):
        raise RuntimeError(f"{len(rows) - len(closed)} of {len(rows)} deliveries were not open")


def _flag(value: bool | None) -> int | None:
    return None if value is None else int(value)


def _deliveries(transaction: Transaction, name: str, **parameters: Value) -> list[Delivery]:
    return [Delivery(*row) for row in transaction.rows(_SQL[name], parameters)]


def _draft(row: Delivery, kind: Kind, reason: str | None, was_stored: bool | None) -> Draft:
    return Draft(
        kind=kind,
        mesh=row.mesh,
        message_id=row.message_id,
        client_message_id=row.client_message_id,
        sender=row.sender,
        recipient=row.member,
        event_id=row.event_id,
        was_stored=was_stored,
        reason=reason,
    )
