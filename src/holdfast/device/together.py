"""Requests of one batch that share more than its commit: a run of the same kind is carried out with the same few statements."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Generic, Self, TypeVar

from holdfast.store.engine import Transaction

A = TypeVar("A", covariant=True)


class Shared(ABC, Generic[A]):
    """A request that is carried out together with those of its kind that stand beside it."""

    @classmethod
    @abstractmethod
    def together(cls, transaction: Transaction, requests: Sequence[Self]) -> list[A]:
        """An answer to each, in order, as if one had come after another."""

    def __call__(self, transaction: Transaction) -> A:
        return self.together(transaction, [self])[0]


def carry_out(transaction: Transaction, requests: Sequence[Callable[[Transaction], Any]]) -> list[Any]:
    """Answer requests in their order."""
    answers: list[Any] = []
    for kind, group in groupby(requests, key=_kind):
        run = list(group)
        answers += [request(transaction) for request in run] if kind is None else kind.together(transaction, run)
    return answers


def _kind(request: Callable[[Transaction], Any]) -> Any:
    return type(request) if isinstance(request, Shared) else None
