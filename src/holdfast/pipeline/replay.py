"""Computes tables anew from the history in a lake, in steps, if a history was restored or pruned unread.

A fork undoes entries that were read before it, and after entries that were pruned unread a log begins anew: which entries a lake had read
by then shows in its tables. So a step ends before every such place. Each step computes the wanted tables and all that they are made of, in
a second lake beside the first.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.pipeline import few
from holdfast.pipeline.delta_table import live_files
from holdfast.pipeline.inputs import Inputs
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.shelf import Run, Step
from holdfast.pipeline.table import Batch, Table, Writing, parameters, reads_state, table_of
from holdfast.protocol.history import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HISTORY = "history"

KINDS = frozenset(map(str, Kind))
"""The kinds of a step's entries: any."""


@dataclass(frozen=True)
class Replay:
    """A lake whose tables are computed anew, and the steps to do that in."""

    spark: "SparkSession"
    lake: Lake
    tables: Mapping[str, Table]
    last: Run
    steps: Sequence[Step]

    def compute(self, wanted: Collection[str]) -> Lake:
        """Compute these tables and all that they are made of; returns the lake that has them."""
        beside = Lake(self.lake.staged_path("replay"), self.lake.step)
        beside.path.mkdir(mode=0o700, parents=True)
        beside.create()
        made = made_of(self.tables, wanted)
        versions: Mapping[str, int] = {}
        for number in range(1, len(self.steps) + 1):
            inputs = _StepInputs(self, beside, made, versions, number)
            for name in made:
                _write(self.tables[name], inputs, beside, number)
            versions = inputs.versions
        return beside

    def entries(self, name: str, number: int) -> "Column":
        """The condition for the entries that an input of this name has in a step: old_, new_ or both."""
        step = _step_of(self.steps)
        if name.startswith("new_"):
            return step == number
        return step < number if name.startswith("old_") else step <= number


class _StepInputs(Inputs):
    """The inputs of the tables in one step."""

    def __init__(
        self, replay: Replay, beside: Lake, made: Collection[str], old_versions: Mapping[str, int], number: int
    ) -> None:
        super().__init__(replay.spark, beside, replay.tables, (), old_versions)
        step = replay.steps[number - 1]
        self.batch = Batch(number, step.at, step.ranges, full=False, kinds=KINDS)
        self._replay = replay
        self._made = made
        self._number = number

    def _frame(self, name: str) -> "DataFrame":
        table = self._tables[table_of(name) or ""]
        if table.name in self._made:
            return super()._frame(name)
        paths = self._kept(name, table)
        if few.are_few(paths):
            self._few.add(name)
        found = self._replay.lake.files_frame(self.spark, table, paths)
        return found.where(self._replay.entries(name, self._number)) if table.name == HISTORY else found

    def _kept(self, name: str, table: Table) -> list[Path]:
        """The files of a table that is not computed here: of the history always, of any other only in the last step."""
        is_there = table.name == HISTORY or (self._number == len(self._replay.steps) and not name.startswith("old_"))
        return self._replay.lake.files(table.name, self._replay.last.versions.get(table.name)) if is_there else []


def _write(table: Table, inputs: Inputs, beside: Lake, number: int) -> None:
    if table.function is None:
        raise TypeError(f"{table.name} has no function")
    staged = inputs.stage(table, table.function)
    if table.writing is Writing.PASSING:
        inputs.passing[table.name] = staged
        return
    beside.commit(table, number, staged, touched=inputs.touched(table))
    inputs.note(table, number)


def made_of(tables: Mapping[str, Table], wanted: Collection[str]) -> list[str]:
    """The wanted tables and all that they are computed from, in order; without the history and tables of the sources' state."""
    found, waiting = set(), list(wanted)
    while waiting:
        table = tables[waiting.pop()]
        if table.name in found or table.name == HISTORY or reads_state(table):
            continue
        found.add(table.name)
        named = (*table.inputs, *(() if table.touches is None else parameters(table.touches)))
        waiting += [name for name in map(table_of, named) if name is not None]
    return [name for name in tables if name in found]


def move(beside: Lake, table: Table, target: Path) -> None:
    """Move the files of a table from the second lake to another folder."""
    target.mkdir(parents=True)
    handle = beside.delta(table.name)
    for path in [] if handle is None else live_files(handle):
        place = target / path.relative_to(beside.root(table.name))
        place.parent.mkdir(exist_ok=True)
        path.rename(place)


def _step_of(steps: Sequence[Step]) -> "Column":
    """The number of the step that read an entry; of an entry outside of all ranges the last step that read its log."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

    read = [(one, number) for number, step in enumerate(steps, 1) for one in step.ranges]
    last = {(one.origin, one.log_id): number for one, number in read}
    found = F.lit(len(steps))
    for one, number in reversed(read):
        is_its = (F.col("origin") == one.origin) & (F.col("log_id") == F.lit(one.log_id))
        if last[one.origin, one.log_id] != number:
            is_its = is_its & (F.col("seq") <= one.until)
        found = F.when(is_its, number).otherwise(found)
    return found
