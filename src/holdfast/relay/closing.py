"""Closing deliveries: a row leaves its queue, the queue's count goes down, and the history says why. Always together."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.protocol.delivery import TRANSITIONS, Signal, State
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.tables import move
from holdfast.store import history
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "closing.sql")


class Delivery(msgspec.Struct, frozen=True):
    """An open row of somebody's queue."""

    mesh: str
    member: str
    seq: int
    message_id: str


def close(
    transaction: Transaction, now: int, rows: Sequence[Delivery], signal: Signal, *, reason: str | None = None
) -> None:
    """Close open rows for one reason. Rows must be open: the queries that find them say so."""
    if not rows:
        return
    state = move(TRANSITIONS, State.OPEN, signal)
    for row in rows:
        changed = transaction.run(
            _SQL["close"], {"mesh": row.mesh, "member": row.member, "seq": row.seq, "state": state.value, "now": now}
        )
        if changed != 1:
            raise RuntimeError(f"delivery {row.seq} of {row.member} was not open")
    for (mesh, member), count in Counter((row.mesh, row.member) for row in rows).items():
        transaction.run(_SQL["take_from_queue"], {"mesh": mesh, "member": member, "count": count})
    history.append(transaction, now, [_draft(row, Kind(state.value), reason) for row in rows])


def expire_queue(transaction: Transaction, now: int, mesh: str, member: str, rows_max: int) -> int:
    """Close what has outlived its time in one member's queue; says how many."""
    rows = _deliveries(transaction, "expired_of_member", mesh=mesh, member=member, now=now, limit=rows_max)
    close(transaction, now, rows, Signal.TTL_PASSED)
    return len(rows)


def expire(transaction: Transaction, now: int, rows_max: int) -> int:
    """Close what has outlived its time in any queue, oldest first; says how many."""
    rows = _deliveries(transaction, "expired", now=now, limit=rows_max)
    close(transaction, now, rows, Signal.TTL_PASSED)
    return len(rows)


def drop_queue(transaction: Transaction, now: int, mesh: str, member: str) -> int:
    """Close everything that waits for a member who is out."""
    rows = _deliveries(transaction, "open_of_member", mesh=mesh, member=member)
    close(transaction, now, rows, Signal.MEMBER_REVOKED)
    return len(rows)


def _deliveries(transaction: Transaction, name: str, **parameters: int | str) -> list[Delivery]:
    return [Delivery(*row) for row in transaction.rows(_SQL[name], parameters)]


def _draft(row: Delivery, kind: Kind, reason: str | None) -> Draft:
    return Draft(kind=kind, mesh=row.mesh, message_id=row.message_id, recipient=row.member, reason=reason)
