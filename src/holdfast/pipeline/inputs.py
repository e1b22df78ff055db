"""What a table's function is handed: a data frame for every parameter name, made when somebody names it."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from holdfast.pipeline import few, state, taking
from holdfast.pipeline.digest import Digest
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.plan import Source, renewed
from holdfast.pipeline.side_by_side import do_each
from holdfast.pipeline.table import (
    SETTLED,
    STATE,
    Batch,
    Function,
    Range,
    Table,
    Writing,
    compares,
    parameters,
)
from holdfast.pipeline.tables.history import SCHEMA as HISTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ENTRY = StructType([field for field in HISTORY if field.name != "day"])
_WITH_THE_DRIVER = ("batch", "state_range")

READS_AT_ONCE = 2
"""How many tables of the sources' state are read side by side: while a relay reads one for us, another is written."""


class Inputs:
    """The inputs of one batch."""

    def __init__(
        self,
        spark: "SparkSession",
        lake: Lake,
        tables: Mapping[str, Table],
        sources: Sequence[Source],
        old_versions: Mapping[str, int],
    ) -> None:
        self.spark = spark
        self.batch: Batch | None = None  # known once the history is there: its clock is the entries'
        self.versions: dict[str, int] = {}  # of the tables that this batch has committed
        self.added: dict[str, list[Path]] = {}  # the files that it added to them
        self.proved: dict[str, Digest] = {}  # digests of those files, where they were computed while writing them
        self.passing: dict[str, Path | None] = {}  # the rows of passing tables; None: there are none
        self._lake = lake
        self._tables = tables
        self._sources = sources
        self._old_versions = old_versions
        self._reading = Lock()  # tables may be computed side by side, and the state is read once
        self._looked_at: list[Range] = []
        self._staged: dict[str, tuple[Path, StructType]] | None = None
        self._frames: dict[str, DataFrame] = {}
        self._few: set[str] = {*_WITH_THE_DRIVER}

    def note(self, table: Table, number: int) -> None:
        """Remember the version and the files that a table got by this batch, whether now or before an interruption."""
        handle = self._lake.delta(table.name)
        if handle is None:
            raise RuntimeError(f"{table.name} was not committed")
        self.versions[table.name] = handle.version()
        self.added[table.name] = self._lake.batch_files(handle, number)

    def shown(self, ranges: Sequence[Range]) -> list[Range]:
        """Those of a batch's ranges whose log is shown by a source: since a batch was interrupted some may be gone, or were restored."""
        logs = {(source.origin, source.head.log_id) for source in self._sources}
        return [one for one in ranges if (one.origin, one.log_id) in logs]

    def call(self, function: Function) -> "DataFrame":
        """A function with its inputs."""
        return function(**{name: self._input(name) for name in parameters(function)})

    def stage(self, table: Table, function: Function) -> Path:
        """A table's rows, computed and written; by the driver, if it has all that they are computed from."""
        frame = self.call(function)
        return self._lake.stage(table, frame, is_few=self._few.issuperset(parameters(function)))

    def touched(self, table: Table) -> list[str]:
        """The partitions that a table says it replaces."""
        return [] if table.touches is None else [str(row[0]) for row in self.call(table.touches).collect()]

    def is_changed(self, table: Table) -> bool:
        """Whether the batch has anything for a table."""
        return self.batch is None or table.is_changed_by(self.batch)

    def are_any(self, function: Function) -> bool:
        """Whether there is anything to look at: where only additions are asked for and none were made, there is not."""
        added = [
            name.startswith("new_") and self.added.get(name.removeprefix("new_")) == [] for name in parameters(function)
        ]
        return not all(added)

    def _input(self, name: str) -> Any:
        if name == "batch":
            return self.batch
        if name not in self._frames:  # what a name means does not change once somebody may name it
            self._frames[name] = self._frame(name)
        return self._frames[name]

    def _frame(self, name: str) -> "DataFrame":
        if name in ("state_range", "later_entry") or name.startswith(STATE):
            return self._state(name)
        table = self._tables[name.removeprefix("old_").removeprefix("new_")]
        paths = self._paths(name, table)
        if few.are_few(paths):
            self._few.add(name)
        return self._lake.files_frame(self.spark, table, paths)

    def _paths(self, name: str, table: Table) -> list[Path]:
        if name.startswith("old_"):
            return self._lake.files(table.name, self._old_versions.get(table.name))
        if not name.startswith("new_"):
            return self._lake.files(table.name, self.versions.get(table.name))
        return self._passed(table.name) if table.writing is Writing.PASSING else self._added(table)

    def _added(self, table: Table) -> list[Path]:
        return self.added[table.name]

    def _passed(self, name: str) -> list[Path]:
        path = self.passing[name]
        return [] if path is None else _files_in(path)

    def _state(self, name: str) -> "DataFrame":
        with self._reading:
            if self._staged is None:
                self._staged = self._read_state()
        if name == "state_range":
            rows = [(one.origin, one.after, one.until) for one in self._looked_at]
            return few.listed(self.spark, rows, state.RANGE)
        folder, schema = self._staged[name]
        paths = _files_in(folder)
        if not few.are_few(paths):
            return self.spark.read.schema(schema).parquet(*map(str, paths))
        self._few.add(name)
        return few.frame(self.spark, schema, few.read(schema, paths))

    def _read_state(self) -> "dict[str, tuple[Path, StructType]]":
        """Read the exported tables, and then what happened meanwhile."""
        if self.batch is None:
            raise RuntimeError("the history comes before the state")
        does_compare = any(map(compares, self._tables.values()))
        if not (does_compare and self.batch.is_behind):
            # What is only taken over, a device that was restored still has up to where it left its old log.
            whole = self.shown(self.batch.ranges) if does_compare else self.batch.ranges
            self._looked_at = state.ranges(whole, self._closed_before(), full=self.batch.full)
        staged: dict[str, tuple[Path, StructType]] = {}

        def stage(name: str) -> None:
            staged[STATE + name] = self._stage(STATE + name, state.reading(name, self._sources, self._looked_at))

        do_each(dict.fromkeys(state.wanted(list(self._tables.values())), ()), READS_AT_ONCE, stage)
        staged["later_entry"] = self._stage("later_entry", self._later() if does_compare else entries([]))
        return staged

    def _stage(self, name: str, reading: state.Reading) -> "tuple[Path, StructType]":
        pieces = reading.pieces()
        write = partial(taking.take, lambda: self.spark, pieces, reading.schema)
        return self._lake.stage_by(name, write), reading.schema

    def _closed_before(self) -> list[tuple[str, int]]:
        """Origin and first position of what this batch closed, one for each bucket of them."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

        seqs = few.listed(self.spark, [], "origin string, seq long")
        for name, column in SETTLED.items():
            if name in self._tables:
                seqs = seqs.unionByName(self._input(f"new_{name}").select("origin", F.col(column).alias("seq")))
        bucket = F.floor((F.col("seq") - 1) / state.BUCKET)
        firsts = seqs.where(F.col("seq").isNotNull()).groupBy("origin", bucket).agg(F.min("seq").alias("seq"))
        return [(row.origin, row.seq) for row in firsts.collect()]

    def _later(self) -> state.Reading:
        batch = self.batch
        if batch is None:
            raise RuntimeError("the history comes before the state")
        looked_at = {one.origin for one in self._looked_at}
        untils = {one.origin: one for one in batch.ranges if one.origin in looked_at}
        found = []
        for source in renewed(self._sources):
            known = untils.get(source.origin)  # of a batch that was interrupted another run may have had fewer sources
            if known is not None and source.head.log_id == known.log_id and source.head.seq > known.until:
                found.append((source, Range(source.origin, known.log_id, known.until, source.head.seq, None)))
        return entries(found)


def entries(ranges: Sequence[tuple[Source, Range]]) -> state.Reading:
    """The entries of ranges of histories, as they are: what is missing or wrong in them is for the tables to find."""
    parts = [
        state.Part(source, {"after": one.after, "until": one.until, "log_id": one.log_id.hex(), "gaps": "pass"})
        for source, one in ranges
    ]
    return state.Reading("history", _ENTRY, parts)


def _files_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))
