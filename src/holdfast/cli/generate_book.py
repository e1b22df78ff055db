"""A database that is written in bulk: entries through its own history, rows beside them, a commit now and then."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import Self

from holdfast.protocol.history import Draft, Entry
from holdfast.store import history
from holdfast.store.engine import Transaction, Value
from holdfast.store.sqlite import SqliteEngine

COMMIT_ROWS = 20_000
"""How many rows and entries wait before they are committed."""


class Book:
    """One open database. Entries are chained in the order in which they are told."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._stack = ExitStack()
        self._rows: dict[tuple[str, tuple[str, ...]], list[Sequence[Value]]] = {}
        self._waiting: list[tuple[int, Draft]] = []
        self._count = 0
        self._begin()
        self.log_id = history.head(self.transaction).log_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
            self._stack.__exit__(kind, error, trace)
        finally:
            self._engine.close()

    def tell(self, at: int, draft: Draft) -> None:
        """An entry for which nobody waits."""
        self._waiting.append((at, draft))
        self._count += 1

    def append(self, at: int, drafts: Sequence[Draft]) -> list[Entry]:
        """Entries of one commit, with their places."""
        self._count += len(drafts)
        return history.append(self.transaction, at, drafts)

    def put(self, table: str, columns: tuple[str, ...], row: Sequence[Value]) -> None:
        """A row of the state; its statement is known by table and columns."""
        self._rows.setdefault((table, columns), []).append(row)
        self._count += 1

    def run(self, statement: str, **parameters: Value) -> None:
        """A change to rows that were put before."""
        self.flush()
        self.transaction.run(statement, parameters)

    def flush(self) -> None:
        """Hand over what waits to the transaction."""
        for at, told in groupby(self._waiting, key=itemgetter(0)):
            history.append(self.transaction, at, [draft for _, draft in told])
        self._waiting.clear()
        for (table, columns), rows in self._rows.items():
            self.transaction.insert(table, columns, rows)
        self._rows.clear()

    def commit_if_due(self) -> None:
        if self._count >= COMMIT_ROWS:
            self.commit()

    def commit(self) -> None:
        self.flush()
        self._stack.__exit__(None, None, None)
        self._begin()

    def _begin(self) -> None:
        self._count = 0
        self._stack = ExitStack()
        self.transaction: Transaction = self._stack.enter_context(self._engine.write())
