"""The outbox by destination, one lane each: which lanes have something to send, and whose turn it is.

A small summary of each lane is kept in memory, and is read again only when something happened in the lane, so a batch costs
in proportion to itself and not to the outbox. Urgent lanes go first; among equals the one whose last turn is longest ago, so
that a long backlog to one destination starves no other.
"""

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.device import operations
from holdfast.device.receipts import RECEIPT
from holdfast.protocol.fingerprint import Priority
from holdfast.protocol.lanes import BATCH_ROWS_MAX, URGENCY, Lane, Waiting, next_batch
from holdfast.protocol.outbox import Signal, Status
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.schedule import RETRY_AFTER_S_MAX, SECOND, SEND_WAIT_MAX
from holdfast.store.engine import Row, Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "lanes.sql")

SENT_KINDS = frozenset({"dm", "topic", RECEIPT})  # not administration, which `publish` sends in its own order
NEW_ROWS_MAX = 1_000  # new rows that are read to find their lanes; beyond that the index of lanes is skipped through

# Reasons for a row to wait that say nothing about the row itself.
_UNDECIDED = frozenset({*FaultKind, Signal.RESTARTED, Refusal.HELD_BACK})

WAIT_MAX = max(SEND_WAIT_MAX, RETRY_AFTER_S_MAX * SECOND)  # a longer wait was computed from a wrong clock

Key = tuple[str, str]  # destination_kind, destination_ref


class _Line(msgspec.Struct):
    """The summary of a lane."""

    due_at: int  # of its head, microseconds
    urgency: int
    head: int  # sequence


class Lanes:
    """All lanes of one outbox that have something to send."""

    def __init__(self) -> None:
        self._lines: dict[Key, _Line] = {}
        self._changed: set[Key] = set()
        self._busy: set[Key] = set()
        self._barred: dict[Key, int] = {}  # lanes that cannot be sealed now, and until when to leave them
        self._turns: dict[Key, int] = {}  # the number of each lane's last turn; the lowest goes first
        self._turn = 0
        self._early: set[Key] = set()  # lanes with receipts that may not be sent yet
        self._seen = -1  # every row up to this sequence is in the summaries
        self._knows_all = False
        self._receipts_through = -1

    def start_over(self) -> None:
        """Forget what was in flight, because the process that sent it is gone."""
        self._busy.clear()
        self._lines.clear()
        self.forget()

    def forget(self) -> None:
        """Drop all summaries, so that every lane is read again."""
        self._knows_all = False
        self._barred.clear()

    def unbar(self) -> None:
        """Try barred lanes again, because keys may have come."""
        self._barred.clear()

    def bar(self, lane: Key, until: int) -> None:
        """Skip a lane until a time."""
        self._barred[lane] = until
        self._changed.add(lane)

    def allow_receipts(self, through: int) -> None:
        """Let receipts up to this sequence go: the relay has noted the acknowledgements that they follow."""
        self._receipts_through = max(through, self._receipts_through)
        self._changed |= self._early
        self._early.clear()

    def release(self, lanes: Iterable[Key]) -> None:
        """Note that these lanes have nothing in flight any more."""
        for lane in lanes:
            self._busy.discard(lane)
            self._changed.add(lane)

    def take(self, transaction: Transaction, now: int) -> dict[Key, list[int]]:
        """The sequences to offer next, by lane and in order; these lanes are busy until `release`."""
        self._look(transaction, now)
        taken: dict[Key, list[int]] = {}
        room = BATCH_ROWS_MAX
        for lane in self._in_turn(now):
            rows = next_batch(self._rows(transaction, lane, now), frozenset(), now, room)
            if rows:
                taken[lane] = [row.sequence for row in rows]
                room -= len(rows)
            if not room:
                break
        for lane in taken:
            self._turn += 1
            self._turns[lane] = self._turn
            self._busy.add(lane)
        return taken

    def due_at(self) -> int | None:
        """When the next lane that is not busy has something to send; None if none has."""
        waiting = (
            max(line.due_at, self._barred.get(lane, 0)) for lane, line in self._lines.items() if lane not in self._busy
        )
        return min(waiting, default=None)

    def _look(self, transaction: Transaction, now: int) -> None:
        newest = operations.max_sequence(transaction)
        head = -1 if newest is None else newest
        if not self._knows_all or head - self._seen > NEW_ROWS_MAX:
            self._changed.update(_all(transaction), self._lines)
        elif head > self._seen:
            self._changed.update(transaction.rows(_SQL["lanes_after"], {"after": self._seen}))
        self._knows_all = True
        self._seen = head
        for lane in self._changed - self._busy:
            self._changed.discard(lane)
            self._summarise(transaction, lane, now)

    def _summarise(self, transaction: Transaction, lane: Key, now: int) -> None:
        rows = self._rows(transaction, lane, now) if lane[0] in SENT_KINDS else []
        if not rows:
            self._lines.pop(lane, None)
            self._turns.pop(lane, None)
            return
        due = [row for row in rows if row.next_attempt_at <= now]
        urgency = min(URGENCY[row.priority] for row in due or rows[:1])
        self._lines[lane] = _Line(rows[0].next_attempt_at, urgency, rows[0].sequence)

    def _rows(self, transaction: Transaction, lane: Key, now: int) -> list[Waiting]:
        """The first rows of a lane; only its head if the relay has put that off, since it would hold back the others."""
        found = transaction.rows(
            _SQL["line"],
            {
                "destination_kind": lane[0],
                "destination_ref": lane[1],
                "limit": BATCH_ROWS_MAX,
            },
        )
        if lane[0] == RECEIPT:
            found = self._allowed(lane, found)
        if found and _was_put_off(found[0][-1]):
            found = found[:1]
        named = Lane("\0".join(lane), lane[0] == RECEIPT)
        return [
            Waiting(sequence, named, Priority(priority), due_at(next_attempt_at, now), Status(status))
            for sequence, priority, next_attempt_at, status, _ in found
        ]

    def _allowed(self, lane: Key, receipts: list[Row]) -> list[Row]:
        """The receipts that may go; if some may not, the lane is read again when more are allowed."""
        allowed = [row for row in receipts if row[0] <= self._receipts_through]
        if len(allowed) < len(receipts):
            self._early.add(lane)
        return allowed

    def _in_turn(self, now: int) -> Sequence[Key]:
        """The lanes that have something to send, in the order of their turns."""
        ready = [
            lane
            for lane, line in self._lines.items()
            if lane not in self._busy and due_at(max(line.due_at, self._barred.get(lane, 0)), now) <= now
        ]
        ready.sort(key=lambda lane: (self._lines[lane].urgency, self._turns.get(lane, -1), self._lines[lane].head))
        return ready


def due_again(transaction: Transaction, now: int, sequences: Iterable[int]) -> None:
    """Make rows due now that had got no answer, if they still wait."""
    for sequence in sequences:
        transaction.run(_SQL["due_again"], {"now": now, "sequence": sequence})


def note(transaction: Transaction, sequence: int, reason: str) -> None:
    """Note on a row why it was not offered."""
    transaction.run(_SQL["note"], {"sequence": sequence, "last_error": reason})


def _all(transaction: Transaction) -> Iterable[Key]:
    lane: Key = ("", "")
    while found := transaction.rows(_SQL["next_lane"], {"destination_kind": lane[0], "destination_ref": lane[1]}):
        ((kind, ref),) = found
        lane = (kind, ref)
        yield lane


def due_at(at: int, now: int) -> int:
    """When a row is due that was put off until `at`: now, if that is so far ahead that a wrong clock must have set it."""
    return at if at - now <= WAIT_MAX else now


def _was_put_off(last_error: str | None) -> bool:
    return last_error is not None and last_error.partition(":")[0] not in _UNDECIDED
