"""What the long runs did, how often, and what they found: kept in a file, and told in docs/reliability.md.

Runs at length are started with `-p tests.ledger --ledger NAME`: each test's outcome, and the numbers it gave with pytest's
`record_property`, are added to what is known of it. Worlds, mutants and coverage note theirs themselves. `python -m
tests.ledger` writes the page anew from the file. A number of the page between its marks is written by nobody's hand.
"""

import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "tests" / "reliability.json"
PAGE = ROOT / "docs" / "reliability.md"
RUNS = ("crash", "fuzz")


def read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(BOOK.read_text()) if BOOK.exists() else {}
    return found


def note(name: str, found: Mapping[str, Any]) -> None:
    """Keep what a run found, in the place of what the last one did, and tell it."""
    with _alone():
        _keep(name, found)


def add(name: str, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Add runs to what is known of each: numbers are added up, and what has none takes the place of what was."""
    with _alone():
        known = read().get(name, {})
        new = {what: _sum(known.get(what, {}), run) if "numbers" in run else dict(run) for what, run in runs.items()}
        _keep(name, known | new)


@contextmanager
def _alone() -> Iterator[None]:
    """Two long runs may end at once."""
    with PAGE.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _keep(name: str, found: Mapping[str, Any]) -> None:
    book = {**read(), name: dict(found)}
    BOOK.write_text(json.dumps(book, indent=1, sort_keys=True) + "\n")
    write_page(read())  # in the order in which it is kept, as whoever reads it will have it


def _sum(known: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {
        what: known.get("numbers", {}).get(what, 0) + run["numbers"].get(what, 0)
        for what in {**known.get("numbers", {}), **run["numbers"]}
    }
    counts = {what: known.get(what, 0) + run[what] for what in ("runs", "failed", "seconds")}
    return {**counts, "last": today(), "numbers": numbers}


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def write_page(book: Mapping[str, Any]) -> None:
    PAGE.write_text(told(book, PAGE.read_text()))


def told(book: Mapping[str, Any], text: str) -> str:
    """A page with everything that is known in its place."""
    for name in book:
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{PAGE} has no place for {name}")
        text = "\n".join((head + begin, "", *_LINES[name](book[name]), "", end + tail))
    return text


def _run_lines(runs: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    yield from ("| what | runs | failed | counted in all of them | last |", "|---|--:|--:|---|---|")
    for what, run in sorted(runs.items()):
        file, _, test = what.partition("::")
        sentence = test.removeprefix("test_").replace("_", " ")
        counted = ", ".join(f"{count:,} {name}" for name, count in sorted(run["numbers"].items()))
        yield f"| {sentence} (`{file.removeprefix('tests/')}`) | {run['runs']:,} | {run['failed']:,} | {counted} | {run['last']} |"


def _world_lines(lengths: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    yield "| " + " | ".join(["what", *(f"worlds of {float(length):,.0f} s" for length in lengths)]) + " |"
    yield "|---|" + "--:|" * len(lengths)
    numbers = list(dict.fromkeys(what for one in lengths.values() for what in one["numbers"]))
    counted: dict[str, list[float]] = {
        what: [one["numbers"].get(what, 0) for one in lengths.values()] for what in numbers
    }
    rows: dict[str, list[float]] = {
        "seeds that were run": [one["runs"] for one in lengths.values()],
        "of them with a finding": [one["failed"] for one in lengths.values()],
        **counted,
        "simulated seconds a second of CPU": [
            one["numbers"]["simulated seconds"] / max(one["seconds"], 1) for one in lengths.values()
        ],
        "faults a simulated hour": [
            one["numbers"]["faults"] / one["numbers"]["simulated seconds"] * 3600 for one in lengths.values()
        ],
    }
    for what, row in rows.items():
        yield f"| {what} | {' | '.join(f'{count:,.0f}' for count in row)} |"


def _mutant_lines(found: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    yield from ("| mutant | why it is wrong | seed | rule that it breaks there | last run |", "|---|---|---|---|---|")
    for name, one in sorted(found.items(), key=lambda item: item[1]["place"]):
        seed = one["seed"] if one["rule"] else "none yet"
        yield f"| `{name}` | {one['why']} | {seed} | {one['rule'] or '—'} | {one['at']} |"


def _covered_lines(found: Mapping[str, Any]) -> Iterable[str]:
    yield from (found["what"], "", "| folder | lines that ran |", "|---|---|")
    for folder, (ran, whole) in found["folders"].items():
        yield f"| `{folder}/` | {ran:,} of {whole:,} ({100 * ran // whole} %) |"


_LINES = {
    "crash": _run_lines,
    "fuzz": _run_lines,
    "worlds": _world_lines,
    "mutants": _mutant_lines,
    "covered": _covered_lines,
}


class Ledger:
    """Listens to a run of pytest, and notes each test when it is over: a run that lasts hours may be ended."""

    def __init__(self, name: str) -> None:
        self._name = name

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or (report.when != "call" and not report.failed):
            return
        numbers: dict[str, Any] = {}
        for what, number in report.user_properties:
            numbers[what] = numbers.get(what, 0) + number
        run = {"runs": int(report.when == "call"), "failed": int(report.failed), "seconds": round(report.duration)}
        add(self._name, {report.nodeid.partition("[")[0]: {**run, "numbers": numbers}})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ledger", choices=RUNS, help="note what is run in tests/reliability.json")


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--ledger")
    if name is not None and not hasattr(config, "workerinput"):  # of several processes one hears of all
        config.pluginmanager.register(Ledger(name))


if __name__ == "__main__":
    write_page(read())
