"""The worker: brings stored events to their handlers, each session's in order, and says in the history what became of them.

An attempt is on disk before the handler begins, and its outcome after it has ended, so a worker may die at any moment: what
it held is free at once, because its owner's lock goes with it. Sessions run side by side. What reads and writes the
database is in `outbox`; what may wait in memory is decided by the queue of the protocol.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import structlog

from holdfast.hook import intake, marks, outbox, owner
from holdfast.hook.event import Handler, HookEvent, nothing
from holdfast.hook.housekeeping import Housekeeping, Report
from holdfast.hook.outbox import Mark, Row
from holdfast.hook.patience import Patience, woken_or_after
from holdfast.hook.session import Session
from holdfast.hook.settings import Settings
from holdfast.hook.statistics import Statistics
from holdfast.hook.store import Store
from holdfast.hook.watch import watching
from holdfast.protocol.hook_queue import Verdict
from holdfast.protocol.hook_row import HookSignal, failure
from holdfast.protocol.schedule import SECOND, hook_wait
from holdfast.store.engine import Transaction
from holdfast.store.world import Clock, Random

DRAIN_S = 5.0  # for handlers to end when the worker is to, and for the store after them; the rest is tried again later

_log = structlog.get_logger(__name__)


class Worker:
    """Works from `run` until `stop`. Several may share a database; each row is one worker's at a time."""

    def __init__(
        self,
        home: Path,
        store: Store,
        handle: Handler = nothing,
        *,
        report: Report | None = None,
        clock: Clock,
        random: Random,
        settings: Settings | None = None,
    ) -> None:
        self._home = home
        self._handle = handle
        self._clock = clock
        self._random = random
        self._settings = settings or Settings()
        self._patience = Patience(store)
        self._house = Housekeeping(home, self._patience, report, clock, self._settings)
        self._intake = intake.Intake(home, store)
        self._sessions: dict[tuple[str, str], Session] = {}
        self._owner = ""
        self._strays: set[tuple[int, int]] = set()  # rows and tokens that were ours and in no session at the last look
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self.statistics = Statistics(self._settings)

    @property
    def depth(self) -> int:
        """Events that wait in memory."""
        return sum(len(session.queue.pending) for session in self._sessions.values())

    @property
    def sessions(self) -> int:
        """The number of sessions in memory."""
        return len(self._sessions)

    @property
    def is_failing(self) -> bool:
        """Whether the store failed when it was last asked."""
        return self._patience.is_failing

    @property
    def stuck(self) -> int:
        """Events that have been open for too long, at the last look."""
        return self._house.stuck

    @property
    def spool_bytes(self) -> int:
        """How many bytes of the spool are not in the database."""
        return self._intake.waiting_bytes

    def wake(self) -> None:
        """Look for new events now."""
        self._woken.set()

    def stop(self) -> None:
        """Let `run` end."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until `stop`. Raises a fault of the store that is not temporary."""
        living = owner.Owner(self._home, self._random)
        self._owner = living.name
        try:
            async with asyncio.TaskGroup() as tasks:
                loops = (
                    self._fetch_on(tasks),
                    self._renew_on(),
                    self._house.report_on(),
                    self._house.keep(self._sum_up),
                )
                running = [tasks.create_task(loop) for loop in loops]
                with watching(self._home, self.wake):
                    await self._stopping.wait()
                for task in running:
                    task.cancel()
                await self._drain()
        finally:
            living.release()
            self._sessions.clear()

    async def _fetch_on(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._woken.clear()
            while await self._fetch(tasks):
                pass
            await woken_or_after(self._woken, self._settings.poll_s)

    async def _fetch(self, tasks: asyncio.TaskGroup) -> bool:
        """Claim what is due and hand it to its sessions; whether there may be more."""
        await self._empty_spool()
        others = await self._patience.do(
            lambda tx: outbox.other_owners(tx, self._owner) if outbox.has_open(tx) else None
        )
        if others is None:
            return False
        dead = owner.gone(self._home, others)
        held = {name: session.held for name, session in self._sessions.items()}
        paused = frozenset(name for name, session in self._sessions.items() if session.queue.is_paused)

        def claim(transaction: Transaction) -> tuple[list[Row], int]:
            now, limit = self._clock(), self._settings.batch_rows
            cutoff = now - int(self._settings.lock_cutoff_s * SECOND)
            outbox.expire(transaction, dead)
            lost = outbox.recover(transaction, self._owner, now, cutoff)
            return outbox.claim_batch(transaction, self._owner, now, cutoff, limit, paused), lost

        rows, lost = await self._patience.do(claim)
        self.statistics.count("taken_over", lost)
        await self._hand_out(rows, held, tasks)
        if rows or lost:
            self._house.wake()
        return len(rows) == self._settings.batch_rows

    async def _hand_out(self, rows: Sequence[Row], held: dict[tuple[str, str], int], tasks: asyncio.TaskGroup) -> None:
        """Offer claimed rows to their sessions, and mark the rows that these do not keep."""
        now, wanted = self._clock(), []
        touched: dict[tuple[str, str], Session] = {}
        for row in rows:
            session = self._sessions.setdefault(row.session, Session(row.session, self._settings.queue))
            if session.held != held.get(row.session, session.held):
                wanted.append(marks.released(row))  # it was claimed while something before it went back
                continue
            touched[row.session] = session
            verdict, more = session.offer(row, now)
            wanted += more
            self.statistics.count("sent_back", verdict is Verdict.SENT_BACK)
            self.statistics.count("coalesced", sum(mark.signal is HookSignal.SUPERSEDED for mark in more))
        if wanted:
            await self._mark(wanted)
        for name, session in touched.items():
            session.settled()
            self.statistics.depth(name, len(session.queue.pending), now)
            if session.task is None:
                session.task = tasks.create_task(self._work_on(session))

    async def _work_on(self, session: Session) -> None:
        """Handle one session's events, one after the other, until none has come for a while."""
        while not self._stopping.is_set():
            session.woken.clear()
            if session.queue.pending:
                await self._handle_one(session, session.take())
                if not session.queue.pending:
                    self.wake()  # what there was no room for may come now
            elif not await woken_or_after(session.woken, self._settings.idle_s) and not session.queue.pending:
                break
        session.task = None
        if not session.queue.pending:
            self._sessions.pop(session.name, None)

    async def _handle_one(self, session: Session, row: Row) -> None:
        event = await self._start(session, row)
        if event is None:
            return
        try:
            async with asyncio.timeout(self._settings.handler_s):
                await self._handle(event)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise  # it is the worker that is to end
            error = RuntimeError("something that the handler waited for was cancelled")
            await self._failed(session, row, error, event.attempts)
            return
        except Exception as error:  # whatever it is, it is the handler's; the row keeps it
            await self._failed(session, row, error, event.attempts)
            return
        await self._end(session, row, HookSignal.SUCCEEDED)

    async def _start(self, session: Session, row: Row) -> HookEvent | None:
        """Count the attempt and read the event; None if the row is not ours, or its payload cannot be read."""

        def start(transaction: Transaction) -> tuple[int | None, object]:
            payload, wrong = _read(outbox.payload(transaction, row.id))
            if not outbox.may_start(transaction, row):
                return None, payload
            return outbox.mark(transaction, self._owner, self._clock(), marks.begun(row, wrong)), payload

        attempts, payload = await self._patience.do(start)
        if attempts is None:
            self._fenced(row)
            await self._let_go(session, row, marks.released(row))  # if it is ours, something before it is not
        elif not isinstance(payload, dict):
            session.finish(row)
            self._count_end(row, is_dead=True)
        else:
            return HookEvent(
                event_id=row.event_id,
                agent=row.agent,
                session_id=row.session_id,
                event_type=row.event_type,
                event_name=row.event_name,
                payload=payload,
                received_at=row.received_at,
                attempts=attempts,
            )
        return None

    async def _failed(self, session: Session, row: Row, error: Exception, attempts: int) -> None:
        signal = failure(error, attempts)
        text = f"{type(error).__name__}: {error}"
        _log.warning(
            "a handler failed", event_id=row.event_id, event_type=row.event_type, attempts=attempts, detail=text
        )
        if signal is not HookSignal.FAILED:
            await self._end(session, row, signal, text)
            return
        self.statistics.count("failed")
        await self._let_go(session, row, marks.ended(row, signal, text, self._clock() + hook_wait(attempts)))

    async def _let_go(self, session: Session, row: Row, mark: Mark) -> None:
        """Write the mark of the row in hand, and release the rows of its session that wait behind it."""
        await self._mark([mark, *session.hold(row)])
        session.settled()

    async def _end(self, session: Session, row: Row, signal: HookSignal, error: str | None = None) -> None:
        fitted = await self._mark([marks.ended(row, signal, error)])
        session.finish(row)
        if fitted:
            self._count_end(row, is_dead=signal is not HookSignal.SUCCEEDED)

    def _count_end(self, row: Row, *, is_dead: bool) -> None:
        self.statistics.ended(row.session, row.received_at, self._clock())
        self.statistics.count("dead", is_dead)
        self._house.wake()

    def _fenced(self, row: Row) -> None:
        self.statistics.count("fenced")
        _log.warning("a row is another worker's by now", event_id=row.event_id, event_type=row.event_type)

    async def _mark(self, wanted: Sequence[Mark]) -> bool:
        """Mark rows together; whether all of them were still ours."""

        def apply(transaction: Transaction) -> list[bool]:
            now = self._clock()
            return [outbox.mark(transaction, self._owner, now, one) is not None for one in wanted]

        fitted = await self._patience.do(apply)
        self.statistics.count("fenced", fitted.count(False))
        return all(fitted)

    async def _renew_on(self) -> None:
        while True:
            await asyncio.sleep(self._settings.renew_s)
            await self._renew()

    async def _renew(self) -> None:
        """Renew our locks, drop rows that another worker has taken over, and release rows that are in no session."""
        before = {row_id for session in self._sessions.values() for row_id in session.row_ids}
        ours = await self._patience.do(lambda tx: outbox.renew(tx, self._owner, self._clock()))
        for session in self._sessions.values():
            for row in session.waiting():
                if row.id in before and ours.get(row.id) != row.token:
                    self._fenced(row)
                    session.forget(row.id)
        strays = {(row_id, token) for row_id, token in ours.items() if row_id not in before}
        lost = strays & self._strays  # one that has only just been claimed is on its way to its session
        if lost:
            _log.error("rows that this worker has forgotten are given back", count=len(lost))
            await self._mark([marks.given_back(row_id, token) for row_id, token in lost])
        self._strays = strays - lost

    async def _empty_spool(self) -> None:
        if self._intake.is_needed:
            self.statistics.count("spooled", await self._patience.patiently(self._intake.take_in))

    def _sum_up(self, now: int) -> None:
        self.statistics.summarise(self.depth, now)

    async def _drain(self) -> None:
        """Wait for running handlers, and release the rows that wait for one."""
        for session in self._sessions.values():
            session.woken.set()
        tasks = {session.task for session in self._sessions.values() if session.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=DRAIN_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._leave()
        except TimeoutError:
            _log.warning("the hook store has no time; whoever comes next finds what this worker leaves")
        self._sum_up(self._clock())

    async def _leave(self) -> None:
        left = [marks.released(row) for session in self._sessions.values() for row in session.waiting()]
        if left:
            await self._mark(left)
        await self._house.report_all()


def _read(text: str) -> tuple[object, str | None]:
    """A payload, or what is wrong with it."""
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError) as error:
        return None, f"{type(error).__name__}: {error}"
    return payload, None if isinstance(payload, dict) else "the payload is not a JSON object"
