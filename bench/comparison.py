"""What Holdfast and its peers reach on the same work, as one small table: the first figures of docs/performance.md."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Figures = Mapping[str, Any]


class Row(NamedTuple):
    """One path: what is done, which benchmark measured it, who of it is Holdfast and who is beside it."""

    what: str
    benchmark: str
    ours: str
    others: Sequence[str]


ROWS = (
    Row("messages accepted, signature checked and durable, 64 clients, one a request", "accept", "one", ("jetstream", "postgres", "redis")),
    Row("the same, a hundred a request", "accept", "batches", ()),
    Row("sends taken from 64 callers by a device, durable", "send", "daemon", ("huey", "pgqueuer")),
    Row("waiting messages handed over and acknowledged in fifties", "flush", "relay", ("redis",)),
    Row("documents replayed to a reader", "feed", "replay", ("nostr_replay",)),
    Row("entries appended to a log by 64 threads, durable", "log", "log", ("litequeue",)),
    Row("one hook event, from the start of the process to durable", "hook", "hook", ("nothing",)),
)  # fmt: skip


def table(found: Mapping[str, Figures]) -> str:
    """The rows that were measured; peers in the order of the table above, each with its own figure of the same run."""
    lines = ["| what, on two cores | Holdfast | in the same run |", "|---|--:|---|"]
    for row in ROWS:
        contestants = found.get(row.benchmark, {}).get("contestants", {})
        if "median" in contestants.get(row.ours, {}):
            beside = [contestants[name] for name in row.others if "median" in contestants.get(name, {})]
            told = "; ".join(f"{one['name']} {_figure(one)}" for one in beside)
            lines.append(f"| {row.what} | {_figure(contestants[row.ours])} | {told} |")
    return "\n".join(lines) + "\n"


def _figure(one: Figures) -> str:
    unit = one["unit"]
    return f"{one['median']:,}{unit if unit.startswith('/') else ' ' + unit}"
