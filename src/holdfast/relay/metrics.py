"""The relay's metrics for Prometheus."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

from prometheus_client import Counter, Gauge
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.wire.metrics import Counts, Tally

_BATCHES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class Metrics(Counts):
    """The metrics of one relay."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = Tally(
            "holdfast_answers", "Answers to offered events: accepted, duplicate, or the refusal.", ("code",)
        )
        self.registry.register(self._answers)
        self._offered = _Offered()
        self.registry.register(self._offered)
        self._notices = Counter(
            "holdfast_notices", "WebSocket messages that were no event, by refusal.", ("code",), registry=self.registry
        )
        self._swept = Counter(
            "holdfast_swept_rows", "Rows that sweeps took away or changed.", ("sweep",), registry=self.registry
        )
        self.sweeps = Counter("holdfast_sweeps", "Rounds of sweeps.", registry=self.registry)
        self.websockets = Gauge("holdfast_websockets", "Open WebSockets.", registry=self.registry)

    def answers(self, codes: Iterable[str]) -> None:
        """Count the answers to one request."""
        events = 0
        for code in codes:
            self._answers.add((code,))
            events += 1
        self._offered.add(events)

    def answered(self) -> dict[str, int]:
        """How often each answer code was given since the start."""
        return {str(code): count for (code,), count in self._answers.counts().items()}

    def notice(self, code: str) -> None:
        self._notices.labels(code).inc()

    def swept(self, gone: Mapping[str, int]) -> None:
        self.sweeps.inc()
        for name, rows in gone.items():
            self._swept.labels(name).inc(rows)


class _Offered(Collector):
    """A histogram of how many events were offered at once; plain numbers, as in `Tally`."""

    def __init__(self) -> None:
        self._requests = [0] * (len(_BATCHES) + 1)
        self._events = 0

    def add(self, events: int) -> None:
        self._requests[bisect_left(_BATCHES, events)] += 1
        self._events += events

    def collect(self) -> Iterable[Metric]:
        bounds, up_to = (*map(str, _BATCHES), "+Inf"), accumulate(self._requests.copy())
        family = HistogramMetricFamily("holdfast_offered_events", "Events offered at once.")
        family.add_metric([], list(zip(bounds, up_to, strict=True)), self._events)
        return (family,)
