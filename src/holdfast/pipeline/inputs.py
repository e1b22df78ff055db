"""The inputs of a table's function: a data frame for each parameter name, made when it is first asked for."""

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
"""How many exported tables are read side by side: while the relay prepares a page of one, we write a page of another."""


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
        self.batch: Batch | None = None  # known once the history is written: its clock is the latest time of an entry
        self.versions: dict[str, int] = {}  # of the tables that this batch has committed
        self.added: dict[str, list[Path]] = {}  # the files that it added to them
        self.proved: dict[str, Digest] = {}  # digests of those files, where they were computed while writing them
        self.passing: dict[str, Path | None] = {}  # the rows of passing tables; None: there are none
        self._lake = lake
        self._tables = tables
        self._sources = sources
        self._old_versions = old_versions
        self._reading = Lock()  # tables that are computed side by side share one reading of the state
        self._looked_at: list[Range] = []
        self._staged: dict[str, tuple[Path, StructType]] | None = None
        self._frames: dict[str, DataFrame] = {}
        self._few: set[str] = {*_WITH_THE_DRIVER}

    def note(self, table: Table, number: int) -> None:
        """Remember the version and the files that a table got by this batch, whether now or before an interruption."""
        handle = self._lake.as_left(table.name, number)
        if handle is None:
            raise RuntimeError(f"{table.name} was not committed")
        self.versions[table.name] = handle.version()
        self.added[table.name] = self._lake.batch_files(handle, number)

    def shown(self, ranges: Sequence[Range]) -> list[Range]:
        """The ranges whose log a source still has; of a resumed batch, a source may be gone or restored by now."""
        logs = {(source.origin, source.head.log_id) for source in self._sources}
        return [one for one in ranges if (one.origin, one.log_id) in logs]

    def call(self, function: Function) -> "DataFrame":
        """Call a function with its inputs."""
        return function(**{name: self._input(name) for name in parameters(function)})

    def stage(self, table: Table, function: Function) -> Path:
        """Compute a table's rows and write them to staging; the driver writes them if it has read all inputs itself."""
        frame = self.call(function)
        return self._lake.stage(table, frame, is_few=self._few.issuperset(parameters(function)))

    def touched(self, table: Table) -> list[str]:
        """The partitions of a table that the batch replaces, even without a row for them."""
        return [] if table.touches is None else [str(row[0]) for row in self.call(table.touches).collect()]

    def is_changed(self, table: Table) -> bool:
        """Whether the batch has entries of a kind that changes a table."""
        return self.batch is None or table.is_changed_by(self.batch)

    def are_any(self, function: Function) -> bool:
        """Whether a function has rows to look at: not if all of its inputs are additions (`new_…`) and nothing was added."""
        added = [
            name.startswith("new_") and self.added.get(name.removeprefix("new_")) == [] for name in parameters(function)
        ]
        return not all(added)

    def _input(self, name: str) -> Any:
        if name == "batch":
            return self.batch
        if name not in self._frames:  # an input no longer changes once it may be asked for
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
        """Read the exported tables, and after them the entries that were written meanwhile."""
        if self.batch is None:
            raise RuntimeError("the history comes before the state")
        does_compare = any(map(compares, self._tables.values()))
        if not (does_compare and self.batch.is_behind):
            # A table that only copies the state reads all ranges: a restored device has its rows up to where it left its old log.
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
        """Where the rows that this batch closed were opened: the origin and first position of each bucket of positions."""
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
            known = untils.get(source.origin)  # None: a resumed batch may have been planned without this source
            if known is not None and source.head.log_id == known.log_id and source.head.seq > known.until:
                found.append((source, Range(source.origin, known.log_id, known.until, source.head.seq, None)))
        return entries(found)


def entries(ranges: Sequence[tuple[Source, Range]]) -> state.Reading:
    """How to read ranges of histories; missing and damaged entries do not fail the read, because the tables find them."""
    parts = [
        state.Part(source, {"after": one.after, "until": one.until, "log_id": one.log_id.hex(), "gaps": "pass"})
        for source, one in ranges
    ]
    return state.Reading("history", _ENTRY, parts)


def _files_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))
