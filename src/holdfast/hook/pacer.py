"""What one adapter is told next: everything final in its order, and of the rest the latest of each session, now and then.

It holds what was read and not yet delivered; what it has dropped, because something later stands for it, counts as settled.
How far everything is settled is what a follower may write down.
"""

from collections import deque

from holdfast.hook.agent_sessions import Report
from holdfast.protocol.pacing import Pacing, PacingMode
from holdfast.protocol.schedule import SECOND

Session = tuple[str, str]


class Pacer:
    """Paces one adapter in one process; another process with the same adapter has its own budget."""

    def __init__(self, pacing: Pacing, position: int) -> None:
        self._pacing = pacing
        self._read_to = position
        self._finals: deque[Report] = deque()
        self._outputs: dict[Session, Report] = {}  # whose turn it is stands first
        self._spoke_at: dict[Session, int] = {}  # when something came from it
        self._told_at: dict[Session, int] = {}  # when something of it that is not final was delivered
        self._last_at: int | None = None  # when anything was
        self._active = 0.0
        self.coalesced = 0

    @property
    def read_to(self) -> int:
        return self._read_to

    @property
    def waiting(self) -> int:
        return len(self._finals) + len(self._outputs)

    @property
    def settled(self) -> int:
        """Up to here, everything was delivered or dropped."""
        open_positions = [report.position for report in (*self._finals, *self._outputs.values())]
        return min(open_positions) - 1 if open_positions else self._read_to

    def offer(self, report: Report, now: int) -> None:
        """Add the next report."""
        self._read_to = report.position
        session = _session(report)
        self._count(session, now)
        if report.event.is_final or self._pacing.mode is PacingMode.OFF:
            self._finals.append(report)
            self.coalesced += self._outputs.pop(session, None) is not None  # it is about what is over now
        else:
            self.coalesced += session in self._outputs
            self._outputs[session] = report  # in the place of the one before, whose turn it keeps

    def pass_over(self, report: Report) -> None:
        """Go on behind the next report, which nobody asked for."""
        self._read_to = report.position

    def next(self, now: int) -> tuple[Report | None, float | None]:
        """The report that is due now, or the seconds until one may be; both None if nothing waits."""
        if self._pacing.mode is PacingMode.STRICT and self._last_at is not None:
            left = self._pacing.tick_s - (now - self._last_at) / SECOND
            if left > 0 and self.waiting:
                return None, left
        if self._finals:
            return self._finals[0], None
        tick_s = self._pacing.session_tick(self._active)
        soonest: float | None = None
        for session, report in self._outputs.items():
            told_at = self._told_at.get(session)
            left = 0.0 if told_at is None else tick_s - (now - told_at) / SECOND
            if left <= 0:
                return report, None
            soonest = left if soonest is None else min(soonest, left)
        return None, soonest

    def settle(self, report: Report, now: int) -> None:
        """Note that a report was delivered or given up."""
        session = _session(report)
        self._last_at = now
        if self._finals and self._finals[0] is report:
            self._finals.popleft()
            return
        if self._outputs.get(session) is report:
            del self._outputs[session]
        self._told_at.pop(session, None)
        self._told_at[session] = now
        self._forget(now)

    def _count(self, session: Session, now: int) -> None:
        self._spoke_at[session] = now
        since = now - int(self._pacing.active_window_s * SECOND)
        self._spoke_at = {name: at for name, at in self._spoke_at.items() if at >= since}
        self._active = self._pacing.smoothed(self._active, len(self._spoke_at))

    def _forget(self, now: int) -> None:
        """Forget sessions whose tick is over, so that memory stays bounded."""
        since = now - int(self._pacing.session_tick(self._active) * SECOND)
        self._told_at = {name: at for name, at in self._told_at.items() if at >= since}


def _session(report: Report) -> Session:
    return report.event.agent, report.event.session_id
