"""A lake in memory: the tables' functions over batches of rows, as the runner would call them, without files between."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.pipeline import times
from holdfast.pipeline.state import DEVICE_TABLES, TABLES
from holdfast.pipeline.table import Batch, Function, Range, Table, Writing, load, parameters, table_of
from holdfast.pipeline.tables.history import SCHEMA as HISTORY
from holdfast.protocol.history import Entry

ENTRY = StructType([one for one in HISTORY if one.name != "day"])
STATE = {name: f"origin string, log_id binary, {columns}" for name, columns in (TABLES | DEVICE_TABLES).items()}

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """Some entries of one log, and the chain that they go on from."""

    origin: str
    log_id: bytes
    after: int
    until: int
    entries: Sequence[Entry]
    chain: bytes | None = None


@dataclass
class MemoryLake:
    """Tables as lists of rows. Only those that are asked for, and what they read, are computed."""

    spark: SparkSession
    wanted: Sequence[str] | None = None
    rows: dict[str, Rows] = field(default_factory=dict)
    breaches: list[tuple[str, str]] = field(default_factory=list)
    at: int = 0
    number: int = 0
    registry: Mapping[str, Table] | None = None

    def __post_init__(self) -> None:
        self.tables = _closure(self.registry or load(), self.wanted)

    def run(
        self,
        parts: Sequence[Part],
        *,
        full: bool = False,
        state: Mapping[str, Rows] | None = None,
        later: Sequence[Part] = (),
    ) -> None:
        """One batch. Without `state` there is none to compare, and no range of it was looked at."""
        self.number += 1
        self.at = max([self.at, *(entry.at for part in parts for entry in part.entries)])
        ranges = tuple(Range(one.origin, one.log_id, one.after, one.until, one.chain) for one in parts)
        kinds = frozenset(str(entry.kind) for part in parts for entry in part.entries)
        batch = Batch(self.number, self.at, ranges, full, kinds)
        call = _Call(self, batch, parts, state, later)
        for table in self.tables.values():
            call.write(table)
        self.breaches += self._broken_rules(call)

    def _broken_rules(self, call: "_Call") -> list[tuple[str, str]]:
        """Rows that break a table's rule, of all tables in one query."""
        selects = []
        for table in self.tables.values():
            if table.invariant is not None and self._can_check(table.invariant):
                told = call.frame(table.invariant).select(
                    F.lit(table.name).alias("table"), F.to_json(F.struct("*")).alias("row")
                )
                told.createOrReplaceTempView(f"broken_{table.name}")
                selects.append(f"SELECT * FROM broken_{table.name}")
        found = self.spark.sql(" UNION ALL ".join(selects)).collect() if selects else []
        return [(row.table, row.row) for row in found]

    def findings(self) -> list[tuple[str, str, bool]]:
        """(kind, key, is_violation) of everything that was found, in order."""
        found = [row for table in self.tables.values() if table.finds for row in self.rows.get(table.name, [])]
        return sorted((row["kind"], row["key"], row["is_violation"]) for row in found)

    def violations(self) -> list[tuple[str, str]]:
        return [(kind, key) for kind, key, is_violation in self.findings() if is_violation]

    def _can_check(self, invariant: Function) -> bool:
        named = {table_of(name) for name in parameters(invariant)} - {None}
        return named <= set(self.tables)


@dataclass
class _Call:
    """The inputs of one batch."""

    lake: MemoryLake
    batch: Batch
    parts: Sequence[Part]
    state: Mapping[str, Rows] | None
    later: Sequence[Part]

    def __post_init__(self) -> None:
        self.old = dict(self.lake.rows)
        self.new: dict[str, Rows] = {}
        self.frames: dict[str, Any] = {}

    def frame(self, function: Function) -> DataFrame:
        return function(**{name: self._known(name) for name in parameters(function)})

    def _known(self, name: str) -> Any:
        """An input, made once: what a name means does not change once somebody may name it."""
        if name not in self.frames:
            self.frames[name] = self._input(name)
        return self.frames[name]

    def write(self, table: Table) -> None:
        if table.name == "history":  # which is taken over
            self.new[table.name] = rows = [_of_its_day(row) for row in entry_rows(self.parts)]
            self.lake.rows[table.name] = self.old.get(table.name, []) + rows
            return
        assert table.function is not None
        if not table.is_changed_by(self.batch):
            self.new[table.name] = []
            return
        frame = self.frame(table.function).select(*table.schema.fieldNames())
        assert [one.dataType for one in frame.schema] == [one.dataType for one in table.schema], table.name
        if table.writing is Writing.PASSING:
            self.new[table.name] = _in_micros(frame.toArrow())
            return
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        self.new[table.name] = rows
        old = self.old.get(table.name, [])
        match table.writing:
            case Writing.APPEND:
                self.lake.rows[table.name] = old + rows
            case Writing.REPLACE:
                self.lake.rows[table.name] = rows
            case Writing.TOUCHED:
                touched = {row[table.partition_by or ""] for row in rows}
                if table.touches is not None:
                    touched |= {row[0] for row in self.frame(table.touches).collect()}
                kept = [row for row in old if row[table.partition_by or ""] not in touched]
                self.lake.rows[table.name] = kept + rows

    def _input(self, name: str) -> Any:
        if name == "batch":
            return self.batch
        if name == "later_entry":
            return entry_frame(self.lake.spark, self.later)
        if name == "state_range":
            return self._frame(self._looked_at(), "origin string, after long, until long")
        if name.startswith("state_"):
            what = name.removeprefix("state_")
            return self._frame((self.state or {}).get(what, []), STATE[what])
        table = self.lake.tables[table_of(name) or ""]
        rows = {"new_": self.new, "old_": self.old}.get(name[:4], self.lake.rows)
        return self._frame(rows.get(table.name, []), _nullable(table.schema))

    def _looked_at(self) -> Rows:
        if self.state is None:
            return []
        return [
            {"origin": one.origin, "after": 0 if self.batch.full else one.after, "until": one.until}
            for one in self.batch.ranges
        ]

    def _frame(self, rows: Rows, schema: str | StructType) -> DataFrame:
        return local_frame(self.lake.spark, rows, schema)


def local_frame(spark: SparkSession, rows: Rows, schema: str | StructType) -> DataFrame:
    """Rows that Spark has while it plans: what is computed from none of them is dropped before anything runs."""
    whole = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(whole, StructType)
    return spark.createDataFrame(pa.Table.from_pylist(rows, to_arrow_schema(whole, timezone="UTC")), whole)


def entry_frame(spark: SparkSession, parts: Iterable[Part]) -> DataFrame:
    """Entries as they are exported."""
    return local_frame(spark, entry_rows(parts), _nullable(ENTRY))


def entry_rows(parts: Iterable[Part]) -> Rows:
    return [entry_row(part, entry) for part in parts for entry in part.entries]


def _of_its_day(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "day": row["at"].date() if isinstance(row["at"], datetime) else datetime.fromtimestamp(0, UTC).date(),
    }


def _in_micros(rows: Any) -> Rows:
    """Rows for other tables to read, with times as numbers: of a damaged one Python makes nothing else."""
    for place, one in enumerate(rows.schema):
        if pa.types.is_timestamp(one.type):
            rows = rows.set_column(place, one.name, rows.column(place).cast(pa.int64()))
    made: Rows = rows.to_pylist()
    return made


def entry_row(part: Part, entry: Entry) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(entry, name) for name in entry.__struct_fields__}
    at = as_time(entry.at) if times.MIN_US <= entry.at <= times.MAX_US else entry.at
    values |= {"origin": part.origin, "log_id": part.log_id, "kind": str(entry.kind), "at": at}
    recipients = [{"member": member, "outcome": outcome} for member, outcome in entry.recipients]
    return {**values, "recipients": recipients, "mentions": list(entry.mentions)}


def as_time(at: int) -> datetime:
    return datetime.fromtimestamp(at // 1_000_000, UTC).replace(microsecond=at % 1_000_000)


def _nullable(schema: StructType) -> StructType:
    """The same columns without the promise that they hold something: planted rows do not."""
    from pyspark.sql.types import StructField

    return StructType([StructField(one.name, one.dataType) for one in schema])


def _closure(tables: Mapping[str, Table], wanted: Sequence[str] | None) -> dict[str, Table]:
    if wanted is None:
        return dict(tables)
    needed: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += [found for one in tables[name].inputs if (found := table_of(one)) is not None]
    return {name: table for name, table in tables.items() if name in needed}
