"""What a table's function is handed: a data frame for every parameter name, made when somebody names it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.pipeline import state
from holdfast.pipeline.lake import Lake, empty
from holdfast.pipeline.plan import Source, renewed
from holdfast.pipeline.table import SETTLED, STATE, Batch, Function, Range, Table, Writing, parameters
from holdfast.pipeline.tables.history import SCHEMA as HISTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_ENTRY = [name for name in HISTORY.fieldNames() if name != "day"]


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
        self.added: dict[str, list[Path]] = {}  # and the files that it added to them
        self.passing: dict[str, Path | None] = {}  # None: it has no rows
        self._lake = lake
        self._tables = tables
        self._sources = sources
        self._old_versions = old_versions
        self._looked_at: list[Range] = []
        self._staged: dict[str, tuple[Path, StructType]] | None = None

    def call(self, function: Function) -> "DataFrame":
        """A function with its inputs."""
        return function(**{name: self._input(name) for name in parameters(function)})

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
        if name in ("state_range", "later_entry") or name.startswith(STATE):
            return self._state(name)
        if name.startswith("old_"):
            table = self._tables[name.removeprefix("old_")]
            return self._lake.frame(self.spark, table, self._old_versions.get(table.name))
        if name.startswith("new_"):
            return self._new(self._tables[name.removeprefix("new_")])
        return self._lake.frame(self.spark, self._tables[name], self.versions.get(name))

    def _new(self, table: Table) -> "DataFrame":
        if table.writing is Writing.PASSING:
            path = self.passing[table.name]
            return empty(self.spark, table.schema) if path is None else self._passed(table, path)
        return self._lake.files_frame(self.spark, table, [str(path) for path in self.added[table.name]])

    def _passed(self, table: Table, path: Path) -> "DataFrame":
        return self.spark.read.schema(table.schema).parquet(str(path))

    def _state(self, name: str) -> "DataFrame":
        if self._staged is None:
            self._staged = self._read_state()
        if name == "state_range":
            rows = [(one.origin, one.after, one.until) for one in self._looked_at]
            return self.spark.createDataFrame(rows, state.RANGE)
        path, schema = self._staged[name]
        return self.spark.read.schema(schema).parquet(str(path))

    def _read_state(self) -> "dict[str, tuple[Path, StructType]]":
        """Read the exported tables, one after the other, and then what happened meanwhile."""
        if self.batch is None:
            raise RuntimeError("the history comes before the state")
        self._looked_at = state.ranges(self.batch.ranges, self._closed_before(), full=self.batch.full)
        staged = {}
        for name in state.wanted(list(self._tables.values())):
            rows = state.frame(self.spark, name, self._sources, self._looked_at)
            staged[STATE + name] = self._lake.stage_frame(STATE + name, rows), rows.schema
        later = self._later()
        staged["later_entry"] = self._lake.stage_frame("later_entry", later), later.schema
        return staged

    def _closed_before(self) -> list[tuple[str, int]]:
        """Origin and first position of what this batch closed, one for each bucket of them."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

        seqs = self.spark.createDataFrame([], "origin string, seq long")
        for name, column in SETTLED.items():
            if name in self._tables:
                seqs = seqs.unionByName(self._new(self._tables[name]).select("origin", F.col(column).alias("seq")))
        bucket = F.floor((F.col("seq") - 1) / state.BUCKET)
        firsts = seqs.where(F.col("seq").isNotNull()).groupBy("origin", bucket).agg(F.min("seq").alias("seq"))
        return [(row.origin, row.seq) for row in firsts.collect()]

    def _later(self) -> "DataFrame":
        found = empty(self.spark, HISTORY).drop("day")
        batch = self.batch
        if batch is None:
            raise RuntimeError("the history comes before the state")
        untils = {one.origin: one for one in batch.ranges}
        for source in map(renewed, self._sources):
            known = untils.get(source.origin)  # of a batch that was interrupted another run may have had fewer sources
            if known is not None and source.head.log_id == known.log_id and source.head.seq > known.until:
                later = Range(source.origin, known.log_id, known.until, source.head.seq, None)
                found = found.unionByName(entries(self.spark, source, later))
        return found


def entries(spark: "SparkSession", source: Source, one: Range) -> "DataFrame":
    """The entries of a range of a history, as they are: what is missing or wrong in them is for the tables to find."""
    reader = state.export(spark, "history", source)
    reader = reader.options(after=one.after, until=one.until, log_id=one.log_id.hex(), gaps="pass")
    return state.with_origin(reader.load(), source.origin).select(*_ENTRY)
