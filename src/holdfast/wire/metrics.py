"""Metrics of a program for Prometheus: in a registry of its own, with names that begin with holdfast_."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_STATM = Path("/proc/self/statm")


class Counts:
    """The metrics of one program: its requests, its errors, and the gauges that it adds."""

    def __init__(self) -> None:
        # Otherwise every counter would have a second line with the time of its creation.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._requests = Tally("holdfast_requests", "HTTP requests by route and status.", ("route", "status"))
        self.registry.register(self._requests)
        self.faults = Counter("holdfast_faults", "Failures of the world: disk, reader process.", registry=self.registry)
        self.bugs = Counter("holdfast_bugs", "Requests that met a mistake of ours.", registry=self.registry)
        self.watch("resident_memory_bytes", "Memory of the process.", resident_memory_bytes)

    def request(self, route: str, status: int) -> None:
        self._requests.add((route, status))

    def watch(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read at each scrape."""
        Gauge(f"holdfast_{name}", documentation, registry=self.registry).set_function(read)

    def watch_counts(self, read: Callable[[], Mapping[str, int]]) -> None:
        """Add several gauges that are read together, once per scrape."""
        self.registry.register(_Counts(read))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Tally(Collector):
    """A counter with labels, cheap enough for every request: plain numbers, added on one thread and read by any."""

    def __init__(self, name: str, documentation: str, labels: tuple[str, ...]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._counts: dict[tuple[object, ...], int] = {}

    def add(self, labels: tuple[object, ...]) -> None:
        self._counts[labels] = self._counts.get(labels, 0) + 1

    def counts(self) -> dict[tuple[object, ...], int]:
        return self._counts.copy()

    def describe(self) -> Iterable[Metric]:
        return (CounterMetricFamily(self._name, self._documentation, labels=self._labels),)

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, count in self.counts().items():
            family.add_metric([str(label) for label in labels], count)
        return (family,)


class _Counts(Collector):
    def __init__(self, read: Callable[[], Mapping[str, int]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()  # otherwise the registry would read the database when this is registered, for the names

    def collect(self) -> Iterable[Metric]:
        for name, count in self._read().items():
            yield GaugeMetricFamily(f"holdfast_{name}", f"How many: {name.replace('_', ' ')}.", value=count)


def resident_memory_bytes() -> float:
    """The resident memory of this process; NaN if the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * float(os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        return float("nan")
