"""What the relay counts, for Prometheus: a registry of its own, names that begin with holdfast_."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BATCHES = (1, 2, 5, 10, 20, 50, 100)
_STATM = Path("/proc/self/statm")


class Metrics:
    """Counts of one relay."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # or every count would have a second line, with the time of its birth
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "holdfast_requests", "HTTP requests by route and status.", ("route", "status"), registry=self.registry
        )
        self._answers = Counter(
            "holdfast_answers",
            "Answers to offered events: accepted, duplicate, or the refusal.",
            ("code",),
            registry=self.registry,
        )
        self._offered = Histogram(
            "holdfast_offered_events", "Events offered at once.", buckets=_BATCHES, registry=self.registry
        )
        self._notices = Counter(
            "holdfast_notices", "WebSocket messages that were no event, by refusal.", ("code",), registry=self.registry
        )
        self._swept = Counter(
            "holdfast_swept_rows", "Rows that sweeps took away or changed.", ("sweep",), registry=self.registry
        )
        self.sweeps = Counter("holdfast_sweeps", "Rounds of sweeps.", registry=self.registry)
        self.faults = Counter("holdfast_faults", "Failures of the world: disk, reader process.", registry=self.registry)
        self.bugs = Counter("holdfast_bugs", "Requests that met a mistake of ours.", registry=self.registry)
        self.websockets = Gauge("holdfast_websockets", "Open WebSockets.", registry=self.registry)

    def request(self, route: str, status: int) -> None:
        self._requests.labels(route, str(status)).inc()

    def answers(self, codes: Iterable[str]) -> None:
        """Answers that left together."""
        count = 0
        for code in codes:
            self._answers.labels(code).inc()
            count += 1
        self._offered.observe(count)

    def notice(self, code: str) -> None:
        self._notices.labels(code).inc()

    def swept(self, gone: Mapping[str, int]) -> None:
        self.sweeps.inc()
        for name, rows in gone.items():
            self._swept.labels(name).inc(rows)

    def watch(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """A gauge that is read when somebody looks."""
        Gauge(f"holdfast_{name}", documentation, registry=self.registry).set_function(read)

    def watch_counts(self, read: Callable[[], Mapping[str, int]]) -> None:
        """What the relay holds, read once when somebody looks."""
        self.registry.register(_Counts(read))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Counts(Collector):
    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()  # or the registry would ask the database for the names while it is being set up

    def collect(self) -> Iterable[Metric]:
        for name, count in self._read().items():
            yield GaugeMetricFamily(f"holdfast_{name}", f"How many: {name.replace('_', ' ')}.", value=count)


def resident_memory_bytes() -> float:
    """How much memory this process has; not a number where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * float(os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        return float("nan")
