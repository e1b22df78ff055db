"""The rules that a database of ours always keeps, as queries that find whatever breaks them.

The same queries serve tests, crash tests and operators: `holdfast check` is this module with a command line.
"""

from collections.abc import Iterator

import msgspec

from holdfast.store import history
from holdfast.store.engine import Engine
from holdfast.store.migrations import Schema

ROWS_SHOWN_MAX = 20
"""How many rows of one broken rule are reported."""


class Finding(msgspec.Struct, frozen=True):
    """A rule and something that breaks it."""

    check: str
    rule: str
    found: str


def check(engine: Engine, schema: Schema) -> Iterator[Finding]:
    """Everything wrong with a database, file first: in a damaged one the other answers mean nothing."""
    damaged = False
    for line in engine.damage():
        damaged = True
        yield Finding("file", "The database finds no damage in its own file.", line)
    if damaged:
        return
    for statements in schema.checks:
        for statement in statements.values():
            with engine.read() as transaction:
                rows = transaction.rows(statement)
            for row in rows[:ROWS_SHOWN_MAX]:
                yield Finding(statement.name, statement.why, ", ".join(map(_show, row)))
    for seq, wrong in history.verify(engine):
        yield Finding("chain", "Every entry hashes, with the one before it, to its chain.", f"entry {seq} {wrong}")


def _show(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
