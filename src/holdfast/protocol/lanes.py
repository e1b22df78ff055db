"""Which rows of the outbox the sender offers next.

Order is kept within a lane: the messages to one destination, or the receipts to it. A lane has at most one batch in flight.
While its first unfinished row waits, the lane waits, and no other lane does. Priority decides between lanes only; inside
a lane order wins, so an urgent row makes the rows before it urgent too.

The whole outbox is read, in a single pass, because its last row may be the most urgent.
"""

from collections.abc import Iterable
from itertools import chain, islice

import msgspec

from holdfast.protocol.fingerprint import Priority
from holdfast.protocol.outbox import Status
from holdfast.protocol.tables import total

BATCH_ROWS_MAX = 100  # events in one request to the relay

URGENCY = total({Priority.NOW: 0, Priority.NEXT: 1, Priority.LOW: 2}, Priority)  # the lower goes first

# Looked up once: an enum's attribute takes longer than everything else that is done with a row.
_PENDING, _INFLIGHT = Status.PENDING, Status.INFLIGHT


class Lane(msgspec.Struct, frozen=True):
    """One destination's messages, or the receipts that go there: a full queue must not hold up receipts."""

    destination: str
    is_receipts: bool = False


class Waiting(msgspec.Struct, frozen=True):
    """The columns of a row that decide whether it is offered."""

    sequence: int
    lane: Lane
    priority: Priority
    next_attempt_at: int  # microseconds
    status: Status


class _Line:
    """The rows of one lane that may go now, from the first on, and the priority of the most urgent of them."""

    __slots__ = ("due", "is_barred", "is_open", "priority")

    def __init__(self, head: Waiting, is_busy: bool) -> None:
        self.due: list[Waiting] = []
        self.priority = head.priority
        self.is_open = True  # until a row must wait, because none behind it may overtake it
        self.is_barred = is_busy  # a batch is in flight

    def add(self, row: Waiting, at: int, rows_max: int) -> None:
        if row.next_attempt_at > at:
            self.is_open = False
            return
        self.due.append(row)
        self.is_open = len(self.due) < rows_max
        if row.priority is not self.priority and URGENCY[row.priority] < URGENCY[self.priority]:
            self.priority = row.priority


def next_batch(
    rows: Iterable[Waiting], busy: frozenset[Lane], at: int, rows_max: int = BATCH_ROWS_MAX
) -> tuple[Waiting, ...]:
    """The rows for one request, in the order to offer them; `busy` lanes have a batch in flight already.

    `rows` come in ascending sequence, as the log has them; any other order is a bug and raises.
    """
    ready = [line for line in _lines(rows, busy, at, rows_max) if line.due and not line.is_barred]
    ready.sort(key=lambda line: (URGENCY[line.priority], line.due[0].sequence))
    return tuple(islice(chain.from_iterable(line.due for line in ready), rows_max))


def _lines(rows: Iterable[Waiting], busy: frozenset[Lane], at: int, rows_max: int) -> Iterable[_Line]:
    lines: dict[Lane, _Line] = {}
    last = -1
    for row in rows:
        if row.sequence <= last:
            raise ValueError(f"sequence {row.sequence} stands after {last}: rows come in ascending order")
        last, status = row.sequence, row.status
        if status is not _PENDING and status is not _INFLIGHT:
            continue
        line = lines.get(row.lane)
        if line is None:
            line = lines[row.lane] = _Line(row, row.lane in busy)
        if status is _INFLIGHT:
            line.is_barred = True
        elif line.is_open:
            line.add(row, at, rows_max)
    return lines.values()
