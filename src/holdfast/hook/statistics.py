"""What a worker counts, and when that is worth a line in the log."""

from collections import deque

import structlog

from holdfast.hook.settings import Settings
from holdfast.protocol.hook_lag import SAMPLES_MAX, Lag, lag
from holdfast.protocol.schedule import SECOND

_log = structlog.get_logger(__name__)

Session = tuple[str, str]


class Statistics:
    """Counts since the start, the latest lags, and warnings that do not repeat themselves."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lags: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._warned_at: dict[tuple[str, Session], int] = {}
        self._told: dict[str, int] = {}
        self.counts = dict.fromkeys(
            ("processed", "coalesced", "sent_back", "failed", "dead", "taken_over", "fenced", "spooled"), 0
        )

    @property
    def lag(self) -> Lag:
        return lag(self._lags)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number

    def ended(self, session: Session, received_at: int, now: int) -> None:
        """Note that an event has ended."""
        self.counts["processed"] += 1
        late = max(now - received_at, 0)
        self._lags.append(late)
        if late >= self._settings.lag_warn_s * SECOND:
            self._warn("late", session, now, lag_s=round(late / SECOND, 3))

    def depth(self, session: Session, depth: int, now: int) -> None:
        """Note how many events of a session wait in memory."""
        if depth >= self._settings.depth_warn:
            self._warn("deep", session, now, depth=depth)

    def summarise(self, depth: int, now: int) -> None:
        """Log one line with the counts since the last one, if there are any."""
        interval = self._settings.warn_interval_s * SECOND
        self._warned_at = {key: at for key, at in self._warned_at.items() if now - at < interval}
        since = {name: number - self._told.get(name, 0) for name, number in self.counts.items()}
        if not any(since.values()) and not depth:
            return
        self._told = dict(self.counts)
        found = self.lag
        _log.info(
            "hooks",
            **since,
            queue_depth=depth,
            lag_samples=found.samples,
            lag_p95_s=found.p95 / SECOND,
            lag_p99_s=found.p99 / SECOND,
        )

    def _warn(self, what: str, session: Session, now: int, **more: float) -> None:
        last = self._warned_at.get((what, session))
        if last is not None and 0 <= now - last < self._settings.warn_interval_s * SECOND:
            return
        self._warned_at[(what, session)] = now
        _log.warning(f"a session of hooks is {what}", agent=session[0], session_id=session[1], **more)
