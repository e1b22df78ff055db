"""The hook outbox as its workers see it: what is due, who has it, what became of it. Transactions only; no loops, no clock.

A lock names its owner, and carries a token that grows with every claim. Every mark gives both, so whoever has lost a row to
another can no longer say anything about it.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.hook import spool
from holdfast.protocol import hook_entry
from holdfast.protocol.history import Draft
from holdfast.protocol.hook_queue import Item, must_precede
from holdfast.protocol.hook_row import COUNTS, TRANSITIONS, HookSignal, HookStatus, lost
from holdfast.protocol.schedule import DAY, HOOK_WAIT_MAX
from holdfast.protocol.tables import move
from holdfast.store.engine import ConstraintViolated, Engine, Transaction, Value
from holdfast.store.finding import Finding
from holdfast.store.statements import Statements

RETENTION_DAYS = 7  # of what has ended and is in the history
PASSED_OVER_ROWS = 10_000  # looked at together where some are to be passed over, which may be many
PRUNE_ROWS = 500  # in one transaction
REPORT_ROWS = 200  # likewise
VERIFIED_ROWS = 100  # that one read transaction of a long walk takes
ERROR_CHARACTERS_MAX = 1_000  # of what is kept of an error
LOST_ERROR = "the worker was lost while it handled this"

_SQL = Statements(__package__, "outbox.sql")
_RECEIVING = Statements(__package__, "receiving.sql")
_DIGESTED = ("event_id", "agent", "session_id", "event_type", "event_name", "occurrence", "received_at", "payload")
_HELD = frozenset({HookStatus.LOCKED, HookStatus.HANDLING})


class Row(msgspec.Struct, frozen=True):
    """A claimed event, without its payload; `token` proves the claim."""

    id: int
    event_id: str
    agent: str
    session_id: str
    event_type: str
    event_name: str
    received_at: int
    token: int

    @property
    def session(self) -> tuple[str, str]:
        return self.agent, self.session_id


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A change of state of a locked row."""

    id: int
    token: int
    before: HookStatus
    signal: HookSignal
    error: str | None = None
    next_attempt_at: int | None = None


class Unreported(msgspec.Struct, frozen=True):
    """A row that the history does not know completely, with the entries to append."""

    id: int
    drafts: tuple[Draft, ...]
    has_ended: bool


def take_in(transaction: Transaction, records: Sequence[spool.Record]) -> list[spool.Record]:
    """Store records of the spool, each once; returns those that the database refuses."""
    rejected = []
    for record in records:
        statement, values = record.get("statement"), record.get("values")
        try:
            if not isinstance(values, dict):
                raise TypeError  # the database would take it for a mistake of ours
            if statement == "insert_event":
                values = {**values, "digest": event_digest(*(values[name] for name in _DIGESTED))}
            transaction.run(_RECEIVING[str(statement)], values)
        except (ArithmeticError, ConstraintViolated, LookupError, TypeError, ValueError):
            rejected.append(record)
    return rejected


def event_digest(*values: object) -> bytes:
    """The digest of an event's values, in their order; a check compares it."""
    return hashlib.sha256("\0".join(map(str, values)).encode()).digest()


def verify(engine: Engine) -> Iterator[Finding]:
    """Every event is what was stored."""
    after = 0
    while True:
        with engine.read() as transaction:
            rows = transaction.rows(_SQL["digested"], {"after": after, "limit": VERIFIED_ROWS})
        for row_id, digest, *values in rows:
            if event_digest(*values) != digest:
                yield Finding("events", verify.__doc__ or "", f"event {row_id} is not what was stored")
        if not rows:
            return
        after = rows[-1][0]


def has_open(transaction: Transaction) -> bool:
    return bool(transaction.rows(_SQL["has_open"]))


def other_owners(transaction: Transaction, owner: str) -> list[str]:
    """The names of other workers that hold rows."""
    return [name for (name,) in transaction.rows(_SQL["other_owners"], {"owner": owner})]


def expire(transaction: Transaction, owners: Iterable[str]) -> None:
    """Expire the locks of dead workers."""
    for owner in owners:
        transaction.run(_SQL["expire_locks"], {"owner": owner})


def recover(transaction: Transaction, owner: str, now: int, cutoff: int) -> int:
    """Take over the rows that dead or stalled workers were handling; returns how many."""
    found = transaction.rows(_SQL["lost"], {"owner": owner, "cutoff": cutoff})
    for row_id, holder, token, attempts in found:
        mark(
            transaction,
            holder,
            now,
            Mark(
                id=row_id,
                token=token,
                before=HookStatus.HANDLING,
                signal=lost(attempts),
                error=LOST_ERROR,
                next_attempt_at=now,
            ),
        )
    return len(found)


def due(
    transaction: Transaction, owner: str, now: int, cutoff: int, *, limit: int, after: int = 0
) -> list[tuple[Row, HookStatus]]:
    """The rows that may be claimed, in order, each with its status."""
    parameters: dict[str, Value] = {
        "owner": owner,
        "now": now,
        "horizon": now + HOOK_WAIT_MAX,
        "cutoff": cutoff,
        "after": after,
        "limit": limit,
    }
    return [(Row(*row), HookStatus(status)) for status, *row in transaction.rows(_SQL["due"], parameters)]


def claim(transaction: Transaction, owner: str, now: int, row: Row, before: HookStatus) -> Row | None:
    """Lock a row; None if somebody was faster."""
    signal = HookSignal.CLAIMED if before is HookStatus.PENDING else HookSignal.TAKEN_OVER
    found = transaction.rows(
        _SQL["claim"],
        {
            "id": row.id,
            "before": before,
            "after": move(TRANSITIONS, before, signal),
            "owner": owner,
            "token": row.token,
            "now": now,
        },
    )
    return msgspec.structs.replace(row, token=found[0][0]) if found else None


def claim_batch(
    transaction: Transaction, owner: str, now: int, cutoff: int, limit: int, passed_over: frozenset[tuple[str, str]]
) -> list[Row]:
    """Lock the next rows, each session's in order and without a gap, except those of `passed_over` sessions."""
    claimed: list[Row] = []
    after, at_once = 0, max(limit, PASSED_OVER_ROWS) if passed_over else limit
    while len(claimed) < limit:
        found = due(transaction, owner, now, cutoff, limit=at_once, after=after)
        for row, before in found:
            if row.session not in passed_over and len(claimed) < limit:
                got = claim(transaction, owner, now, row, before)
                claimed += [got] if got is not None else []
        if len(found) < at_once:
            break
        after = found[-1][0].id
    return claimed


def mark(transaction: Transaction, owner: str, now: int, wanted: Mark) -> int | None:
    """Change the state of a locked row; returns its attempts, or None if the owner has lost it."""
    after = move(TRANSITIONS, wanted.before, wanted.signal)
    is_held = after in _HELD
    found = transaction.rows(
        _SQL["mark"],
        {
            "id": wanted.id,
            "before": wanted.before,
            "after": after,
            "owner": owner,
            "token": wanted.token,
            "counted": int(COUNTS[wanted.signal]),
            "next_attempt_at": wanted.next_attempt_at,
            "error": None if wanted.error is None else wanted.error[:ERROR_CHARACTERS_MAX],
            "lock_owner": owner if is_held else None,
            "locked_at": now if is_held else None,
            "ended_at": None if is_held or after is HookStatus.PENDING else now,
        },
    )
    return int(found[0][0]) if found else None


def may_start(transaction: Transaction, row: Row) -> bool:
    """Whether no earlier open row of its session must be handled before this row. This check guarantees the order."""
    parameters: dict[str, Value] = {"agent": row.agent, "session_id": row.session_id, "id": row.id}
    open_before = transaction.rows(_SQL["open_before"], parameters)
    item = Item(row.id, row.event_type)
    return not any(
        status == HookStatus.HANDLING or must_precede(Item(row_id, event_type), item)
        for row_id, event_type, status in open_before
    )


def renew(transaction: Transaction, owner: str, now: int) -> dict[int, int]:
    """Renew the locks of a worker; returns the rows that it still holds, with their tokens."""
    return dict(transaction.rows(_SQL["renew"], {"owner": owner, "now": now}))


def payload(transaction: Transaction, row_id: int) -> str:
    ((text,),) = transaction.rows(_SQL["payload"], {"id": row_id})
    return str(text)


def unreported(transaction: Transaction, limit: int = REPORT_ROWS) -> list[Unreported]:
    """Rows that the history does not know completely, oldest first."""
    return [_unreported(*row) for row in transaction.rows(_SQL["unreported"], {"limit": limit})]


def mark_reported(transaction: Transaction, rows: Iterable[Unreported]) -> None:
    """Note that the history has the entries of these rows."""
    for row in rows:
        transaction.run(_SQL["mark_reported"], {"id": row.id, "ended": int(row.has_ended)})


def prune(transaction: Transaction, now: int) -> int:
    """Remove rows that ended long ago and are in the history; returns how many, at most PRUNE_ROWS."""
    return transaction.run(_SQL["prune"], {"before": now - RETENTION_DAYS * DAY, "limit": PRUNE_ROWS})


def numbers(transaction: Transaction) -> dict[str, int]:
    """The number of rows in each state."""
    found: dict[str, int] = dict(transaction.rows(_SQL["numbers"]))
    return {status.value: found.get(status, 0) for status in HookStatus}


def stuck(transaction: Transaction, before: int) -> tuple[int, int | None]:
    """How many rows have been open since before then, and when the oldest of them came."""
    ((count, oldest),) = transaction.rows(_SQL["stuck"], {"before": before})
    return count, oldest


def dropped(transaction: Transaction) -> list[dict[str, Any]]:
    """Dropped events by agent, name and reason, with counts."""
    names = ("agent", "event_name", "reason", "count", "first_at", "last_at")
    return [dict(zip(names, row, strict=True)) for row in transaction.rows(_SQL["dropped"])]


def dead(transaction: Transaction, limit: int) -> list[dict[str, Any]]:
    """Dead events, the latest first."""
    names = ("id", "event_id", "agent", "session_id", "event_type", "attempts", "last_error", "ended_at")
    return [dict(zip(names, row, strict=True)) for row in transaction.rows(_SQL["dead"], {"limit": limit})]


def without_session(transaction: Transaction) -> int:
    """How many events named no session, although they could be read."""
    return int(transaction.rows(_SQL["without_session"])[0][0])


def session_events(transaction: Transaction, agent: str, session_id: str) -> list[dict[str, Any]]:
    """All events of one session, in order."""
    names = ("event_id", "event_type", "status", "last_error", "received_at", "ended_at", "ended_reported")
    found = transaction.rows(_SQL["session_events"], {"agent": agent, "session_id": session_id})
    return [dict(zip(names, row, strict=True)) for row in found]


def _unreported(
    row_id: int,
    event_id: str,
    agent: str,
    session_id: str,
    event_type: str,
    event_name: str,
    received_at: int,
    attempts: int,
    error: str,
    status: str,
    size: int,
    received_reported: int,
    ended_reported: int,
) -> Unreported:
    detail = hook_entry.HookDetail(
        agent=agent,
        session_id=session_id,
        event_type=event_type,
        event_name=event_name,
        received_at=received_at,
        attempts=attempts,
        error=error,
    )
    drafts = [] if received_reported else [hook_entry.received(event_id, size, detail)]
    has_ended = status in hook_entry.ENDINGS
    if has_ended and not ended_reported:
        drafts.append(hook_entry.ended(event_id, HookStatus(status), detail))
    return Unreported(row_id, tuple(drafts), has_ended)
