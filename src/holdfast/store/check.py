"""The rules that a database of ours always keeps, as queries that find whatever breaks them.

What no query can say, such as a hash, is a walk over the rows. The same rules serve tests, crash tests and operators:
`holdfast check` is this module with a command line.
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
    """Everything wrong with a database, file first: in a damaged one the other answers mean nothing."""
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
    """A check that cannot even be made is a finding, too: what it stumbled over is not as we write it."""
    try:
        yield from look()
    except (faults.Fault, LookupError, TypeError, ValueError) as error:
        yield Finding(name, rule, f"cannot be checked: {type(error).__name__}: {error}")


def _show(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
