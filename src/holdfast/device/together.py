"""Carries out the requests of one batch; successive requests of one kind share their SQL statements."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Generic, Self, TypeVar

from holdfast.store.engine import Transaction

A = TypeVar("A", covariant=True)


class Shared(ABC, Generic[A]):
    """A request that is carried out together with neighbours of its kind."""

    @classmethod
    @abstractmethod
    def together(cls, transaction: Transaction, requests: Sequence[Self]) -> list[A]:
        """Carry out requests of this kind; returns the answers, as if each had come alone, in order."""

    def __call__(self, transaction: Transaction) -> A:
        return self.together(transaction, [self])[0]


def carry_out(transaction: Transaction, requests: Sequence[Callable[[Transaction], Any]]) -> list[Any]:
    """Carry out requests in order; returns their answers."""
    answers: list[Any] = []
    for kind, group in groupby(requests, key=_kind):
        run = list(group)
        answers += [request(transaction) for request in run] if kind is None else kind.together(transaction, run)
    return answers


def _kind(request: Callable[[Transaction], Any]) -> Any:
    return type(request) if isinstance(request, Shared) else None
