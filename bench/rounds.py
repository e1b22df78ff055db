"""Rounds: everybody takes turns in one run, because a shared machine is not the same from one minute to the next."""

import os
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.load import Measured
from bench.peers import Absent
from bench.results import record

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "4"))
RATE_MAX = int(os.environ.get("BENCH_RATE", "12000"))  # what is signed beforehand for a second: more than anybody takes


@dataclass
class Contestant:
    """One who takes part in every round."""

    name: str
    unit: str
    rates: list[float] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)  # what else is known of it
    p50s: list[float] = field(default_factory=list)
    p99s: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    costs_us: list[float] = field(default_factory=list)  # of the server's processor time

    def add(self, measured: Measured, each: int = 1) -> None:
        """One round's figures; `each` is how much one request carries."""
        self.rates.append(measured.per_s * each)
        self.p50s.append(measured.quantile_ms(0.5))
        self.p99s.append(measured.quantile_ms(0.99))
        self.busy.append(measured.busy)
        if measured.server_s is not None:
            self.costs_us.append(measured.server_s * 1e6 / (measured.answered * each))
        say(f"  {self.name}: {self.rates[-1]:,.0f} {self.unit}, p99 {self.p99s[-1]:.1f} ms")

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {"unit": self.unit, **self.more}
        if self.rates:
            found |= {
                "median": _rounded(statistics.median(self.rates)),
                "low": _rounded(min(self.rates)),
                "high": _rounded(max(self.rates)),
                "rounds": len(self.rates),
            }
        for name, values in (
            ("p50_ms", self.p50s),
            ("p99_ms", self.p99s),
            ("load_busy", self.busy),
            ("server_us", self.costs_us),
        ):
            if values:
                found[name] = round(statistics.median(values), 2)
        return found


class Contest:
    """The benchmark of one path: who took part, and which goals were met."""

    def __init__(self, name: str, about: str) -> None:
        self.name = name
        self.about = about
        self.those: dict[str, Contestant] = {}
        self.absent: list[str] = []
        self.goals: list[dict[str, Any]] = []
        say(f"{name}: {about}")

    def of(self, key: str, name: str, unit: str = "/s") -> Contestant:
        return self.those.setdefault(key, Contestant(name, unit))

    def without(self, absent: Absent) -> None:
        self.absent.append(str(absent))
        say(f"  {absent} is absent: not measured")

    def median(self, key: str) -> float | None:
        found = self.those.get(key)
        return statistics.median(found.rates) if found is not None and found.rates else None

    def goal(self, said: str, value: float | None, wanted: float, *, at_most: bool = False) -> None:
        """A goal, and how near we came; None where what it is measured against is absent."""
        met = None if value is None else (value <= wanted if at_most else value >= wanted)
        self.goals.append(
            {"goal": said, "value": None if value is None else _rounded(value), "wanted": wanted, "met": met}
        )

    def ratio(self, said: str, ours: str, theirs: str, wanted: float) -> None:
        """A goal that is a ratio within this run."""
        mine, other = self.median(ours), self.median(theirs)
        self.goal(said, None if mine is None or not other else mine / other, wanted)

    def finish(self, **more: Any) -> None:
        contestants = {key: {"name": one.name, **one.figures()} for key, one in self.those.items()}
        figures: Mapping[str, Any] = {"title": self.about, "contestants": contestants, "goals": self.goals, **more}
        record(self.name, {**figures, "absent": self.absent})
        for one in self.those.values():
            told = one.figures()
            if one.rates:
                say(f"  {one.name}: median {told['median']:,} ({told['low']:,} to {told['high']:,}) {one.unit}")
        for goal in self.goals:
            verdict = {True: "met", False: "missed", None: "not measured"}[goal["met"]]
            say(f"  {goal['goal']}: {'-' if goal['value'] is None else format(goal['value'], ',')} ({verdict})")


def in_rounds(turns: Mapping[str, Callable[[], None]]) -> None:
    for number in range(ROUNDS):
        say(f" round {number + 1} of {ROUNDS}, load {os.getloadavg()[0]:.1f}")
        for turn in turns.values():
            turn()


def say(text: str) -> None:
    print(text, flush=True, file=sys.stdout)


def _rounded(value: float) -> float | int:
    return round(value) if abs(value) >= 100 else round(value, 2)
