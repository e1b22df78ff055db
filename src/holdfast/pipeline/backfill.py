"""Computes tables that a lake lacks, or has with other columns, from the history in it.

All of the history is taken as one batch. How histories are cut into batches shows in no table, so this gives the rows that the batches
before would have given. Where a log was restored, or entries were pruned unread, there is a batch up to there and one from there on
(`replay`).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.pipeline.inputs import Inputs
from holdfast.pipeline.lake import Lake, LakeOutdated, TableTaken, empty
from holdfast.pipeline.replay import KINDS, Replay, move
from holdfast.pipeline.shelf import Run, Shelf, Step
from holdfast.pipeline.table import Batch, Table, reads_state, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Computing(Protocol):
    """A way to compute tables."""

    versions: dict[str, int]

    def staged(self, table: Table) -> Path:
        """Compute a table and write its rows; returns their folder."""
        ...


class _Everything(Inputs):
    """Computes tables in one batch, which has all of the history."""

    def __init__(
        self, spark: "SparkSession", lake: Lake, tables: Mapping[str, Table], last: Run, steps: list[Step]
    ) -> None:
        super().__init__(spark, lake, tables, (), {})
        self.versions = dict(last.versions)
        ranges = tuple(one for step in steps for one in step.ranges)
        self.batch = Batch(last.number, last.at, ranges, full=False, kinds=KINDS)

    def staged(self, table: Table) -> Path:
        if table.function is None:
            raise TypeError(f"{table.name} has no function")
        return self.stage(table, table.function)

    def _added(self, table: Table) -> list[Path]:
        return self._lake.files(table.name, self.versions.get(table.name))

    def _passed(self, name: str) -> list[Path]:
        if name not in self.passing:
            self.passing[name] = self.staged(self._tables[name])
        return super()._passed(name)


class _StepByStep:
    """Computes tables in steps: all of them when the first one is asked for."""

    def __init__(self, replay: Replay, wanted: Collection[str]) -> None:
        self.versions = dict(replay.last.versions)
        self._replay = replay
        self._wanted = wanted

    @cached_property
    def _beside(self) -> Lake:
        return self._replay.compute(self._wanted)

    def staged(self, table: Table) -> Path:
        beside = self._beside
        return self._replay.lake.stage_by(table.name, lambda target: move(beside, table, target))


def to_rebuild(lake: Lake, tables: Mapping[str, Table], last: Run, named: Collection[str] = ()) -> tuple[str, ...]:
    """The tables to compute anew: those that are named or have other columns now, and all that are made of them.

    Tables that an interrupted batch computed anew are among them, though they have their columns already and no complete batch
    names them.
    """
    stored = [one for one in tables.values() if one.is_stored]
    kept = [one for one in stored if one.name in last.versions or lake.delta(one.name) is not None]
    begun = {one.name for one in kept if lake.is_rebuilt_for(one, last.number + 1)}
    wanted = begun | {one.name for one in kept if one.name in named or lake.is_outdated(one)}
    if "history" in wanted:
        raise LakeOutdated(str(lake.root("history")), "everything is made of it, and it is made of nothing here")
    taken = sorted(name for name in wanted if _is_taken(tables[name]))
    if taken:
        raise TableTaken(str(lake.root(taken[0])))
    affected = _with_what_is_made_of(tables, wanted)
    return tuple(one.name for one in kept if one.name in affected)


def _with_what_is_made_of(tables: Mapping[str, Table], wanted: Collection[str]) -> set[str]:
    affected = set(wanted)
    for one in tables.values():
        if not reads_state(one) and affected & {table_of(name) for name in one.inputs}:
            affected.add(one.name)
    return affected


def _is_taken(one: Table) -> bool:
    """Whether a table has rows of the state of devices: computed anew it would have only what they still hold."""
    return reads_state(one) and not one.finds


def lacking(tables: Mapping[str, Table], last: Run) -> list[Table]:
    """The tables that the last batch did not leave."""
    return [one for one in tables.values() if one.is_stored and one.name not in last.versions]


def fill(
    spark: "SparkSession", shelf: Shelf, tables: Mapping[str, Table], last: Run, rebuild: Collection[str] = ()
) -> Run:
    """Compute the tables that the last complete batch lacks or that must be rebuilt; returns it with their versions.

    Before the first batch there is nothing to compute from: a rebuilt table then begins empty.
    """
    versions = {name: version for name, version in last.versions.items() if name not in rebuild}
    known = replace(last, versions=versions)
    wanted = lacking(tables, known) if last.number else [tables[name] for name in rebuild]
    if not wanted:
        return last
    lake = shelf.lake
    computing = _computing(spark, shelf, tables, known, [table.name for table in wanted])
    _forget(tables, rebuild, lake, last.number)
    for table in wanted:
        if table.name in rebuild:
            _rebuild(table, computing, lake, last.number, spark)
        else:
            _fill(table, computing, lake, last.number)
    return replace(last, versions=computing.versions)


def _computing(
    spark: "SparkSession", shelf: Shelf, tables: Mapping[str, Table], known: Run, wanted: Collection[str]
) -> _Computing:
    steps = shelf.steps(known.number)
    if len(steps) > 1:
        return _StepByStep(Replay(spark, shelf.lake, tables, known, steps), wanted)
    return _Everything(spark, shelf.lake, tables, known, steps)


def _forget(tables: Mapping[str, Table], rebuild: Collection[str], lake: Lake, number: int) -> None:
    """Discard rebuilt tables whose inputs are yet to be rebuilt: an older version made them, and was interrupted.

    This comes before any table is rebuilt, so that a crash between the two changes nothing.
    """
    due = {name for name in rebuild if lake.rebuilt(tables[name], number) is None}
    for name in sorted((_with_what_is_made_of(tables, due) - due).intersection(rebuild)):
        lake.forget_rebuilt(tables[name], number)


def _rebuild(table: Table, computing: _Computing, lake: Lake, number: int, spark: "SparkSession") -> None:
    if lake.rebuilt(table, number) is None:
        if number == 0 or reads_state(table):
            staged = lake.stage(table, empty(spark, table.schema), is_few=True)
        else:
            staged = computing.staged(table)
        lake.rebuild(table, number, staged)
    lake.protect(table)
    version = lake.rebuilt(table, number)
    if version is None:
        raise RuntimeError(f"{table.name} was not computed anew")
    computing.versions[table.name] = version


def _fill(table: Table, computing: _Computing, lake: Lake, number: int) -> None:
    if table.function is None:
        return
    if lake.committed(table.name) < number:
        if reads_state(table):  # the state of that time is gone; the next full batch compares
            lake.commit_unchanged(table, number)
        else:
            lake.commit(table, number, computing.staged(table))
    then = lake.after(table, number)
    if then is None:
        raise RuntimeError(f"{table.name} was not filled")
    computing.versions[table.name] = then.version()
