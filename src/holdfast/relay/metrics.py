"""What the relay counts, for Prometheus: a registry of its own, names that begin with holdfast_."""

from collections import Counter as Tally
from collections.abc import Iterable, Mapping

from prometheus_client import Counter, Gauge, Histogram

from holdfast.wire.metrics import Counts

_BATCHES = (1, 2, 5, 10, 20, 50, 100)


class Metrics(Counts):
    """Counts of one relay."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = Counter(
            "holdfast_answers",
            "Answers to offered events: accepted, duplicate, or the refusal.",
            ("code",),
            registry=self.registry,
        )
        self._answered: dict[str, Counter] = {}  # finding one by its label costs more than counting
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
        self.websockets = Gauge("holdfast_websockets", "Open WebSockets.", registry=self.registry)

    def answers(self, codes: Iterable[str]) -> None:
        """Answers that left together."""
        found = Tally(codes)
        for code, count in found.items():
            if code not in self._answered:
                self._answered[code] = self._answers.labels(code)
            self._answered[code].inc(count)
        self._offered.observe(found.total())

    def answered(self) -> dict[str, int]:
        """How often each answer was given since the start."""
        samples = (sample for family in self._answers.collect() for sample in family.samples)
        return {sample.labels["code"]: int(sample.value) for sample in samples if sample.name.endswith("_total")}

    def notice(self, code: str) -> None:
        self._notices.labels(code).inc()

    def swept(self, gone: Mapping[str, int]) -> None:
        self.sweeps.inc()
        for name, rows in gone.items():
            self._swept.labels(name).inc(rows)
