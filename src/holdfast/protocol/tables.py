"""Tables: a decision table has an answer for every case, a transition table only for what can happen.

A table is data, written once and read-only. A decision table with a missing or surplus case fails when its module is
imported, so a new member of an enum cannot be forgotten anywhere. An absent transition raises when it is tried.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

Case = TypeVar("Case")
Decision = TypeVar("Decision")
State = TypeVar("State")
Signal = TypeVar("Signal")


class NoTransition(Exception):
    """A signal that cannot happen in this state: a bug of the caller, not a refusal."""

    def __init__(self, state: object, signal: object) -> None:
        super().__init__(f"{signal!s} cannot happen to a row that is {state!s}")
        self.state = state
        self.signal = signal

    def __reduce__(self) -> tuple[type["NoTransition"], tuple[object, object]]:
        return type(self), (self.state, self.signal)  # so that it can be pickled for another process


def total(table: Mapping[Case, Decision], cases: Iterable[Case]) -> Mapping[Case, Decision]:
    """The table, read-only; raises unless it decides exactly these cases."""
    expected = frozenset(cases)
    missing, unexpected = expected - table.keys(), table.keys() - expected
    if missing or unexpected:
        raise TypeError(f"not a total table: without {_listed(missing)}; not a case {_listed(unexpected)}")
    return MappingProxyType(dict(table))


def transitions(table: Mapping[tuple[State, Signal], State]) -> Mapping[tuple[State, Signal], State]:
    """A transition table, read-only; `move` walks it."""
    return MappingProxyType(dict(table))


def move(table: Mapping[tuple[State, Signal], State], state: State, signal: Signal) -> State:
    """The state after this signal; raises if the table has no such transition."""
    try:
        return table[state, signal]
    except KeyError:
        raise NoTransition(state, signal) from None


def _listed(cases: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, cases))) or "none"
