"""How the demo is told: steps one after the other, each a claim and a function that finds out whether it holds.

A step looks at what the processes say and raises `NotHeld` where that is not what was claimed. The first that does not hold
ends the story: what follows builds on it.
"""

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from holdfast.cli.demo_world import Missing, NotHeld, World


class Step(NamedTuple):
    """What is claimed, and how it is found out; the function returns what was seen."""

    claim: str
    show: Callable[[World], str]


class State(StrEnum):
    """What became of a step."""

    HELD = "held"
    FAILED = "failed"
    MISSING = "missing"  # what it needs is not installed
    NOT_TRIED = "not tried"


class Told(NamedTuple):
    """A step that was tried, or was not any more."""

    claim: str
    state: State
    seen: str = ""
    seconds: float = 0.0


class Teller(Protocol):
    """Whoever watches."""

    def begin(self, number: int, step: Step) -> None: ...

    def end(self, number: int, told: Told) -> None: ...


def tell(steps: Sequence[Step], world: World, teller: Teller) -> list[Told]:
    """Try steps until one does not hold; what became of each."""
    all_told: list[Told] = []
    for number, step in enumerate(steps, 1):
        if all_told and all_told[-1].state is not State.HELD:
            all_told.append(Told(step.claim, State.NOT_TRIED))
            continue
        teller.begin(number, step)
        all_told.append(_tried(step, world))
        teller.end(number, all_told[-1])
    return all_told


def _tried(step: Step, world: World) -> Told:
    began_at = time.monotonic()
    try:
        state, seen = State.HELD, step.show(world)
    except NotHeld as no:
        state, seen = State.FAILED, str(no)
    except Missing as missing:
        state, seen = State.MISSING, str(missing)
    except Exception as error:  # a process that died or answered nonsense has not shown what was claimed, either
        state, seen = State.FAILED, f"{type(error).__name__}: {error}"
    return Told(step.claim, state, seen, time.monotonic() - began_at)
