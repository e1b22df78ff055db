"""The rules that every database of ours keeps, as queries that return the rows that break them.

A rule that no query can express, such as a hash, is a walk over the rows. The same rules serve tests, crash tests and
operators: `holdfast check` is this module with a command line.
"""

from collections.abc import Callable, Iterator
from functools import partial

from holdfast.store import faults
from holdfast.store.engine import Engine
from holdfast.store.finding import Finding
from holdfast.store.migrations import Schema
from holdfast.store.statements import Statement

ROWS_SHOWN_MAX = 20
"""How many rows of one broken rule are reported."""


def check(engine: Engine, schema: Schema) -> Iterator[Finding]:
    """All findings of every check. The file is checked first: in a damaged file the other checks mean nothing."""
    damage = engine.damage()
    if damage:
        yield from (Finding("file", "The database finds no damage in its own file.", line) for line in damage)
        return
    for statements in schema.checks:
        for statement in statements.values():
            yield from _attempted(statement.name, statement.why, partial(_broken, engine, statement))
    for walk in schema.walks:
        yield from _attempted(walk.__name__, walk.__doc__ or "", partial(walk, engine))


def _broken(engine: Engine, statement: Statement) -> Iterator[Finding]:
    with engine.read() as transaction:
        rows = transaction.rows(statement)
    for row in rows[:ROWS_SHOWN_MAX]:
        yield Finding(statement.name, statement.why, ", ".join(map(_show, row)))


def _attempted(name: str, rule: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of one check; a check that fails with an error is a finding itself."""
    try:
        yield from look()
    except (faults.Fault, LookupError, TypeError, ValueError) as error:
        yield Finding(name, rule, f"cannot be checked: {type(error).__name__}: {error}")


def _show(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
