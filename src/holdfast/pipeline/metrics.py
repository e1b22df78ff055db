"""The metrics of a lake, as a file that Prometheus' node exporter picks up."""

from holdfast.pipeline.lake import Lake
from holdfast.pipeline.outcome import Outcome
from holdfast.store import files

METRICS_FILE = "metrics.prom"

_METRICS = {
    "batch": "number of the last complete batch",
    "at_seconds": "latest time of an entry in the lake",
    "violations": "findings that break a rule",
    "findings": "all findings",
    "open": "deliveries that are open",
    "uncompared": "histories that were not compared yet with the tables of their relay or device",
    "batch_seconds": "how long the last batch took, or the check that found no work for one",
}


def write(lake: Lake, outcome: Outcome, seconds: float) -> None:
    """Replace the file atomically."""
    values = {
        "batch": outcome.number,
        "at_seconds": outcome.at / 1_000_000,
        "violations": outcome.violations,
        "findings": outcome.findings,
        "open": outcome.balance["open"],
        "uncompared": len(outcome.uncompared),
        "batch_seconds": round(seconds, 3),
    }
    lines = []
    for name, meaning in _METRICS.items():
        lines += [f"# HELP holdfast_pipeline_{name} {meaning}", f"# TYPE holdfast_pipeline_{name} gauge"]
        lines.append(f"holdfast_pipeline_{name} {values[name]}")
    files.replace(lake.path / METRICS_FILE, ("\n".join(lines) + "\n").encode())
