"""The hook database, open: one writer for all who change it, reads beside it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast.store.engine import Engine, Transaction
from holdfast.store.writer import Later, Writer

T = TypeVar("T")


class Store:
    """The hook database with its writer. `threaded` writes in a thread; `later` does so on a simulated loop."""

    def __init__(self, engine: Engine, *, threaded: bool = True, later: Later | None = None) -> None:
        self._engine = engine
        self._writer: Writer[Callable[[Transaction], Any], Any] = Writer(
            engine, _one_after_another, inline=not threaded, later=later
        )

    async def do_soon(self, request: Callable[[Transaction], T]) -> T:
        """Run a transaction that writes; on disk when this returns."""
        answer: T = await self._writer.ask_soon(request)
        return answer

    def look(self, query: Callable[[Transaction], T]) -> T:
        """Read in one transaction."""
        with self._engine.read() as transaction:
            return query(transaction)

    def close(self) -> None:
        self._writer.close()
        self._engine.close()


def _one_after_another(transaction: Transaction, requests: Sequence[Callable[[Transaction], Any]]) -> list[Any]:
    return [request(transaction) for request in requests]
