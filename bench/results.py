"""What the benchmarks found: one JSON file, a part for each of them, with what it ran on."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

RESULTS = Path(os.environ.get("BENCH_RESULTS", Path(__file__).parent / "results.json"))


def record(name: str, figures: dict[str, Any]) -> None:
    """Put the figures of one benchmark in the place of those it found before; the others' stay."""
    found = load()
    found[name] = {"about": _about(), **figures}
    beside = RESULTS.with_suffix(".new")
    beside.write_text(json.dumps(found, indent=2) + "\n")
    beside.replace(RESULTS)


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def now() -> str:
    """When a figure was found."""
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())


def _about() -> dict[str, Any]:
    """When, on what machine, and how busy it was with other things: a figure means little without."""
    return {
        "at": now(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }
