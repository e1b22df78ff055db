"""A table of the lake: one function from data frames to a data frame, with its schema, its key and its rule.

The function's parameter names are its inputs. For a table `T` of the lake there are three of them:

    T        all of T as this batch leaves it; T is computed first
    new_T    the rows that this batch adds to T (an append table), or its rows (a passing one); T is computed first
    old_T    all of T as the batch before left it; empty in the first batch; says nothing about order, so T may name old_T

and beside the tables

    state_X        the rows of the exported table X (see `state.py`) of the sequence ranges in `state_range`
    state_range    (origin, after, until): which positions were looked at for the state tables
    later_entry    entries past the batch, up to a head that was read after the last state row
    batch          a `Batch`, not a data frame

A batch is computed again after a crash and must then give the same rows: no clock but `batch.at`, no random numbers, no
order that is not asked for, and nothing of the batch's own cut (its number, its bounds) in a row of a table.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Function = Callable[..., "DataFrame"]

OUTSIDE = ("state_range", "later_entry", "batch")
"""Inputs that are not tables of the lake."""

STATE = "state_"

SETTLED = {"message_fate": "accepted_seq", "sender_fate": "enqueued_seq", "snapshot_standing": "seq", "reopened": "seq"}
"""The tables of what a batch settled, each with the column of the position where that began: the state there is compared, too.

So a table that reads exported state is computed after these, though none of its parameters says so.
"""


class Writing(StrEnum):
    """What happens to the rows that a table's function gives."""

    APPEND = "append"  # they are added; no row ever changes
    REPLACE = "replace"  # they are the table
    TOUCHED = "touched"  # they replace the partitions that they lie in; other partitions stay as they are
    PASSING = "passing"  # computed once in a batch for the tables that read it as new_T, and not kept
    RECORD = "record"  # the runner writes them; there is no function


@dataclass(frozen=True)
class Range:
    """A part of one history: entries with after < seq ≤ until."""

    origin: str  # relay:<pubkey> or device:<mesh>/<member>
    log_id: bytes
    after: int
    until: int
    chain: bytes | None  # of the entry at `after`; None where the log begins or that entry is gone


@dataclass(frozen=True)
class Batch:
    """What a table's function may know of the batch that it is computed in."""

    number: int  # from 1; for `run` and `certificate` alone
    at: int  # µs: the greatest `at` of all entries up to here, which is the batch's clock
    ranges: tuple[Range, ...]  # one for each history
    full: bool  # compare all of the exported state, not only what this batch touched
    kinds: frozenset[str] = frozenset()  # of its entries
    is_behind: bool = False  # compare nothing: the batch that catches up will compare all


@dataclass(frozen=True)
class Table:
    """One table of the lake."""

    name: str
    meaning: str  # one line
    key: tuple[str, ...]  # no two rows agree in all of these
    schema: "StructType"
    writing: Writing
    function: Function | None  # None for what the runner writes itself
    # Gives the rows that break the table's rule, which its docstring says in one line.
    invariant: Function | None = None
    partition_by: str | None = None  # a column of the schema
    sort_by: tuple[str, ...] = ()  # how rows lie in their files
    finds: bool = False  # its rows are findings: it has the columns of `finding.COLUMNS`
    touches: Function | None = None  # gives the partitions to replace, also those that have no rows any more
    kinds: tuple[str, ...] = ()  # the kinds of entries that change it; empty: any
    reads: tuple[str, ...] = ()  # the inputs of a table without a function
    rule: str = ""  # and its rule, in words

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.reads if self.function is None else parameters(self.function)

    @property
    def is_stored(self) -> bool:
        return self.writing is not Writing.PASSING

    def is_changed_by(self, batch: Batch) -> bool:
        """Whether a batch has entries of a kind that changes this table."""
        return not self.kinds or not batch.kinds.isdisjoint(self.kinds)


def table(
    *,
    key: tuple[str, ...],
    schema: "StructType",
    writing: Writing,
    invariant: Function | None = None,
    partition_by: str | None = None,
    sort_by: tuple[str, ...] = (),
    finds: bool = False,
    touches: Function | None = None,
    kinds: tuple[str, ...] = (),
) -> Callable[[Function], Table]:
    """Make a function the table of the same name; its docstring is the table's meaning."""

    def made(function: Function) -> Table:
        found = Table(
            name=function.__name__,
            meaning=(function.__doc__ or "").strip(),
            key=key,
            schema=schema,
            writing=writing,
            function=function,
            invariant=invariant,
            partition_by=partition_by,
            sort_by=sort_by,
            finds=finds,
            touches=touches,
            kinds=kinds,
        )
        _check(found)
        return found

    return made


def parameters(function: Function) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def table_of(parameter: str) -> str | None:
    """The name of the table that a parameter stands for; None for inputs that are not tables."""
    if parameter in OUTSIDE or _is_state(parameter):
        return None
    for prefix in ("new_", "old_"):
        if parameter.startswith(prefix):
            return parameter.removeprefix(prefix)
    return parameter


def reads_state(one: Table) -> bool:
    """Whether a table reads the exported state of its sources, beside their histories."""
    return any(_is_state(name) or name in ("state_range", "later_entry") for name in one.inputs)


def compares(one: Table) -> bool:
    """Whether a table compares the exported state with the histories: only then does it need to know what changed meanwhile."""
    return "later_entry" in one.inputs


def load() -> dict[str, Table]:
    """Every table of a relay's lake, in an order in which each comes after those it reads."""
    from holdfast.pipeline import tables

    return in_order(_tables_in(tables))


def load_search() -> dict[str, Table]:
    """Every table of an owner's lake, ordered likewise; `history` is the same as in a relay's."""
    from holdfast.pipeline import search
    from holdfast.pipeline.tables.history import history

    return in_order({history.name: history, **_tables_in(search)})


def _tables_in(package: ModuleType) -> dict[str, Table]:
    found: dict[str, Table] = {}
    for module in iter_modules(package.__path__):
        if module.name.startswith("_"):
            continue  # a module that several tables share
        value: Any = getattr(import_module(f"{package.__name__}.{module.name}"), module.name, None)
        if not isinstance(value, Table):
            raise TypeError(f"{package.__name__}.{module.name} has no table {module.name}")
        found[module.name] = value
    return found


def in_order(tables: Mapping[str, Table]) -> dict[str, Table]:
    """The tables sorted by what they read, and by name where that leaves a choice."""
    needs = {name: needs_of(tables, tables[name]) for name in sorted(tables)}
    try:
        return {name: tables[name] for name in TopologicalSorter(needs).static_order()}
    except CycleError as error:
        raise ValueError(f"tables read each other: {' → '.join(error.args[1])}") from error


def needs_of(tables: Mapping[str, Table], one: Table) -> list[str]:
    """The tables that have to be computed before one of them."""
    names = [name for name in SETTLED if name in tables and any(map(_is_state, one.inputs))]
    for parameter in one.inputs:
        name = table_of(parameter)
        if name is None:
            continue
        if name not in tables:
            raise ValueError(f"{one.name} reads {parameter}, but there is no table {name}")
        if not tables[name].is_stored and not parameter.startswith("new_"):
            raise ValueError(f"{one.name} reads {parameter}, but {name} is not kept: name new_{name}")
        if parameter.startswith("new_") and tables[name].writing in (Writing.REPLACE, Writing.TOUCHED):
            raise ValueError(f"{one.name} reads {parameter}, but {name} is replaced: name {name}")
        if not parameter.startswith("old_"):
            names.append(name)
    return names


def _is_state(parameter: str) -> bool:
    return parameter.startswith(STATE)


def _check(one: Table) -> None:
    columns = set(one.schema.fieldNames())
    unknown = {*one.key, *one.sort_by, *([one.partition_by] if one.partition_by else [])} - columns
    if unknown:
        raise ValueError(f"{one.name} has no column {', '.join(sorted(unknown))}")
    if not one.meaning or "\n" in one.meaning:
        raise ValueError(f"{one.name} needs a docstring of one line")
    if one.writing is Writing.TOUCHED and one.partition_by is None:
        raise ValueError(f"{one.name} replaces partitions and has none")
