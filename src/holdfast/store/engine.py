"""The interface between our programs and a database: a transaction, not a list of operations.

Programs bring their own SQL, as named statements with `:name` parameters in the part of the language that SQLite and
PostgreSQL share. What differs between the two is here and nowhere else.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Value = int | str | bytes | None
Row = tuple[Any, ...]


class ConstraintViolated(Exception):
    """A row broke a constraint, or has a value that the database cannot hold. The transaction cannot go on; the store is fine."""


class Transaction(Protocol):
    """Statements that happen together or not at all. Valid inside its `with` block only."""

    where: str

    def rows(self, statement: str, parameters: Mapping[str, Value] = ...) -> list[Row]:
        """Run a statement and return the rows that it selects or that `RETURNING` names."""

    def run(self, statement: str, parameters: Mapping[str, Value] = ...) -> int:
        """Run a statement and return how many rows it changed."""

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> None:
        """Insert many rows: one by one is fastest on SQLite, one statement of arrays on PostgreSQL."""

    def lookup(self, statement: str, columns: Sequence[str], wanted: Sequence[Sequence[Value]]) -> list[Row]:
        """Select, or change, for many keys at once: the statement reads them from a relation `wanted` with these columns."""

    def script(self, statements: str) -> None:
        """Run the statements of a migration, which are written in SQLite's names for types.

        Another engine reads INTEGER as 64 bits wide and BLOB as its own type of bytes, and ignores STRICT and WITHOUT ROWID.
        """

    def tables(self) -> set[str]:
        """The names of all tables; each engine reads its own catalogue."""

    def size_bytes(self) -> int:
        """The bytes that the rows take. On PostgreSQL this includes the free room that deleted rows left in the files."""


class Watch(Protocol):
    """Tells when other processes write to a database, and whether this process has the shared duty (the sweeps)."""

    has_duty: bool
    """Whether this process has the duty now. Two may think so for a moment, so the work must bear being done twice."""

    def wait_for_duty(self) -> bool:
        """Wait a moment for the duty, and return whether this process has it."""

    def close(self) -> None:
        """Stop listening, and give up the duty."""


class Alone:
    """The watch of a database that nobody else writes to."""

    has_duty = True

    def wait_for_duty(self) -> bool:
        return True

    def close(self) -> None:
        pass


class Engine(Protocol):
    """One open database."""

    where: str
    is_shared: bool
    """Whether other processes may write to it while we do."""

    def prepare(self) -> None:
        """Set what durability needs, or refuse. Called once the database is known to be ours."""

    def write(self, *, brief: bool = False) -> AbstractContextManager[Transaction]:
        """A transaction that may change things: on disk when the block is left, undone when it raises.

        In a `brief` one no statement touches more than fits into memory.
        """

    def read(self) -> AbstractContextManager[Transaction]:
        """A consistent view to read from. Keep it short: it holds back the clean-up of what writers replaced."""

    def watch(self, told: Callable[[], None]) -> Watch:
        """Watch the database: `told` is called, on any thread, soon after another process has written."""

    def damage(self) -> list[str]:
        """The damage that the database itself finds in its files. Reads everything."""

    def close(self) -> None:
        """Close the files or connections. Closing twice is fine."""
