"""What a worker has of one agent session in memory: its queue, and the rows that stand for what is in it."""

import asyncio

import msgspec

from holdfast.hook.outbox import Mark, Row
from holdfast.protocol import hook_queue
from holdfast.protocol.hook_queue import Item, Queue, Verdict
from holdfast.protocol.hook_row import HookSignal, HookStatus
from holdfast.protocol.schedule import SECOND


class Session:
    """The claimed rows of one session, in the order in which they were claimed."""

    def __init__(self, name: tuple[str, str], settings: hook_queue.Settings) -> None:
        self.name = name
        self.queue = Queue()
        self.woken = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.held = 0  # how often all that waited was let go; rows that were claimed before that are let go, too
        self._settings = settings
        self._rows: dict[int, Row] = {}

    @property
    def row_ids(self) -> list[int]:
        """The ids of all rows here, waiting or being handled."""
        return list(self._rows)

    def offer(self, row: Row, now: int) -> tuple[Verdict, list[Mark]]:
        """Add a claimed row; returns the verdict, and the marks to write for it."""
        outcome = hook_queue.offer(self.queue, Item(row.id, row.event_type), self._settings)
        self.queue = outcome.queue
        self._rows[row.id] = row
        marks = [self._mark(gone.row_id, HookSignal.SUPERSEDED, error=gone.label) for gone in outcome.coalesced]
        if outcome.verdict is Verdict.SENT_BACK:
            error, again_at = hook_queue.SENT_BACK_ERROR, now + hook_queue.SENT_BACK_WAIT_S * SECOND
            marks.append(self._mark(row.id, HookSignal.SENT_BACK, error=error, next_attempt_at=again_at))
        return outcome.verdict, marks

    def settled(self) -> None:
        """Note that the marks of the last change are on disk."""
        self.queue = msgspec.structs.replace(self.queue, away=frozenset())
        self.woken.set()

    def take(self) -> Row:
        """The next event, for a handler."""
        self.queue = hook_queue.take(self.queue)
        assert self.queue.handling is not None  # noqa: S101 - it was just taken
        return self._rows[self.queue.handling.row_id]

    def finish(self, row: Row) -> None:
        """Note that the event being handled has ended."""
        self.queue = hook_queue.finish(self.queue, self._settings)
        self._rows.pop(row.id, None)

    def hold(self, row: Row) -> list[Mark]:
        """Release all waiting rows, because the event being handled will be retried."""
        self.held += 1
        waiting, self.queue = hook_queue.hold(self.queue)
        self._rows.pop(row.id, None)
        return [self._mark(item.row_id, HookSignal.RELEASED) for item in waiting]

    def forget(self, row_id: int) -> None:
        """Drop a waiting row that another worker has taken over."""
        self.queue = hook_queue.forget(self.queue, row_id, self._settings)
        self._rows.pop(row_id, None)

    def waiting(self) -> list[Row]:
        return [self._rows[item.row_id] for item in self.queue.pending]

    def _mark(
        self, row_id: int, signal: HookSignal, *, error: str | None = None, next_attempt_at: int | None = None
    ) -> Mark:
        row = self._rows.pop(row_id)
        return Mark(
            id=row.id,
            token=row.token,
            before=HookStatus.LOCKED,
            signal=signal,
            error=error,
            next_attempt_at=next_attempt_at,
        )
