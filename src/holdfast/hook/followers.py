"""A follower: delivers what agents have told to one adapter, in its own time, and writes down how far it has come.

Nothing final is lost by an adapter that fails, hangs or dies with the whole process: what was not delivered is delivered
again, until it is, or is too old and is given up: that is counted and said. So an adapter may get the same twice, under the
same id. However old a report is, it is tried: the adapter may be well, and the clock wrong. Only one that has been asked in
vain again and again goes without what is too old, so that this does not pile up.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from holdfast.hook import agent_sessions
from holdfast.hook.agent_sessions import EVENT_RETENTION_DAYS, Report
from holdfast.hook.pacer import Pacer
from holdfast.hook.patience import Patience, woken_or_after
from holdfast.hook.store import Store
from holdfast.protocol.agent_event import AgentEvent, AgentKind
from holdfast.protocol.pacing import Pacing
from holdfast.protocol.schedule import SECOND, hook_wait
from holdfast.store.world import Clock

BATCH_EVENTS = 200  # read together
WAITING_MAX = 1_000  # in memory; the rest stays in the database until there is room
LOOK_S = 5.0  # without being woken
ERROR_CHARACTERS_MAX = 500
IN_VAIN_MAX = 20  # attempts in a row, after which what is too old is given up untried
TOO_OLD = f"not delivered within {EVENT_RETENTION_DAYS} days"

Deliver = Callable[[AgentEvent], Awaitable[None]]
"""Gives something to an adapter; returning means that it has it. Raising means: later, or never if it is Undeliverable."""

_log = structlog.get_logger(__name__)


class Undeliverable(Exception):
    """The adapter will never accept this report."""


class Adapter(msgspec.Struct, frozen=True):
    """A receiver of reports: a topic, a webhook, the log or a program."""

    name: str  # for ever: how far it has come is kept under it
    deliver: Deliver
    pacing: Pacing
    attempts_max: int | None = None  # for one event; no end if none
    timeout_s: float | None = 60.0  # for one attempt; none if it sees to that itself
    kinds: tuple[AgentKind, ...] = ()  # that it is told of; all if none is named


class Follower:
    """Delivers reports to one adapter until it is cancelled."""

    def __init__(self, adapter: Adapter, store: Store, clock: Clock, is_clock_right: Callable[[], bool]) -> None:
        """`is_clock_right` says whether somebody else has found the clock right; before that, no report is too old."""
        self._adapter = adapter
        self._patience = Patience(store)
        self._clock = clock
        self._is_clock_right = is_clock_right
        self._woken = asyncio.Event()
        self._kept = 0  # how far it has come, on disk
        self._tried: Report | None = None  # what the adapter was given last
        self._attempts = 0  # to give it that
        self._failures = 0  # since it last took a report, or one was skipped: the next wait grows with them
        self._in_vain = 0  # attempts since it last took a report, while the clock was known to be right
        self._error: str | None = None  # of the last failure, as it is on disk
        self.counts = dict.fromkeys(("delivered", "coalesced", "failed", "given_up"), 0)

    @property
    def name(self) -> str:
        return self._adapter.name

    def wake(self) -> None:
        """Look for new reports now."""
        self._woken.set()

    async def run(self) -> None:
        name = self._adapter.name
        pacer = Pacer(self._adapter.pacing, await self._patience.do(lambda tx: agent_sessions.follow(tx, name)))
        self._kept = pacer.settled
        while True:
            self._woken.clear()
            await self._read(pacer)
            report, wait_s = pacer.next(self._clock())
            if report is not None and self._is_over(report):
                await self._give_up(pacer, report, TOO_OLD)
            elif report is not None:
                await asyncio.sleep(await self._deliver(pacer, report))
            else:
                if pacer.settled > self._kept:  # what is left was dropped
                    await self._keep(pacer)
                await woken_or_after(self._woken, LOOK_S if wait_s is None else min(wait_s, LOOK_S))

    async def _read(self, pacer: Pacer) -> None:
        # Not in the event loop's own thread: a database that somebody keeps locked is waited for.
        while pacer.waiting < WAITING_MAX:
            found = await self._patience.do(lambda tx: agent_sessions.told(tx, pacer.read_to, BATCH_EVENTS))
            for report in found:
                if not self._adapter.kinds or report.event.kind in self._adapter.kinds:
                    pacer.offer(report, self._clock())
                else:
                    pacer.pass_over(report)
            self.counts["coalesced"] = pacer.coalesced
            if len(found) < BATCH_EVENTS:
                return

    async def _deliver(self, pacer: Pacer, report: Report) -> float:
        """Deliver a report once; returns the seconds to wait before the next attempt."""
        self._attempts = self._attempts + 1 if report is self._tried else 1
        self._tried = report
        self._in_vain += self._is_clock_right()
        try:
            async with asyncio.timeout(self._adapter.timeout_s):
                await self._adapter.deliver(report.event)
        except Undeliverable as error:
            await self._skip(pacer, report, str(error))
        except Exception as error:  # whatever it is, it is the adapter's, and the event is still to be delivered
            text = ": ".join(filter(None, (type(error).__name__, str(error))))[:ERROR_CHARACTERS_MAX]
            self.counts["failed"] += 1
            if self._adapter.attempts_max is not None and self._attempts >= self._adapter.attempts_max:
                await self._skip(pacer, report, text)
                return 0.0
            self._failures += 1
            if text != self._error:
                _log.warning("an adapter failed; it is tried again", adapter=self._adapter.name, detail=text)
                await self._keep(pacer, error=text, error_at=self._clock())
                self._error = text
            return hook_wait(self._failures) / SECOND
        else:
            self._failures, self._in_vain, self._error = 0, 0, None
            self.counts["delivered"] += 1
            pacer.settle(report, self._clock())
            await self._keep(pacer, delivered=1)
        return 0.0

    async def _skip(self, pacer: Pacer, report: Report, text: str) -> None:
        """Give up a report that the adapter does not take."""
        self._failures, self._error = 0, None
        await self._give_up(pacer, report, text, error=text)

    async def _give_up(self, pacer: Pacer, report: Report, text: str, error: str | None = None) -> None:
        """Go on without a report, count it and say which it is; `error` is the adapter's own."""
        _log.error("an adapter goes without a report", adapter=self._adapter.name, id=report.event.id, detail=text)
        self.counts["given_up"] += 1
        now = self._clock()
        pacer.settle(report, now)
        await self._keep(pacer, given_up=1, given_up_error=text, error=error, error_at=now)

    def _is_over(self, report: Report) -> bool:
        """Whether a report is too old, and the adapter had its chance."""
        had_its_chance = report is self._tried or self._in_vain >= IN_VAIN_MAX
        return had_its_chance and self._is_clock_right() and report.told_at < agent_sessions.outdated(self._clock())

    async def _keep(self, pacer: Pacer, **more: int | str | None) -> None:
        name, position = self._adapter.name, pacer.settled
        await self._patience.do(lambda tx: agent_sessions.advance(tx, name, position, **more))  # type: ignore[arg-type]  # its own keywords
        self._kept = position
