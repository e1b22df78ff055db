"""The lake: Delta tables in a directory. Spark or its tasks write their files, and the driver alone commits them, with true statistics.

Delta has no commit over several tables, so a batch commits each table once, under its number, and the table `run` last;
readers open the versions that its last row names. A commit that the table already has is not made again: the number is
asked of the very handle that commits. Every write and every commit goes through `step`, which is where a test kills.
"""

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from holdfast.pipeline import content, few, statistics
from holdfast.pipeline.delta_log import logged, root_of, sync_files, sync_log
from holdfast.pipeline.table import Table, Writing
from holdfast.store import faults, files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

BATCH_APPLICATION = "holdfast batch"
"""The application whose transactions a table's commits are; their version is the number of the batch."""

REBUILD_APPLICATION = "holdfast rebuild"
"""The application whose transactions tell that a table was computed anew; their version is the batch that this was done for."""

SMALL_FILES_MAX = 16
"""A partition with more small files than this is compacted."""

SMALL_FILE_BYTES = 33_554_432
TARGET_FILE_BYTES = 134_217_728

VACUUM_HOURS = 24
"""How long a file that no version of interest needs is kept, for readers that opened it before."""

PRIVATE = ".holdfast"
"""The directory in the lake that is no table: key, lock, plan, staging."""

_FORM = {f"parquet.enable.dictionary#{name}": "false" for name in few.UNLIKE}

_UNFIT = re.compile(r"[\[\]{}*?%,^|=\\\x00-\x1f\ud800-\udfff]")

_APPEND_ONLY = "delta.appendOnly"
_FORGETS_VERSIONS = "delta.enableExpiredLogCleanup"
_APPENDING = (Writing.APPEND, Writing.RECORD)

Result = TypeVar("Result")
Step = Callable[[str, Callable[[], Result]], Result]


class LakeBusy(faults.Fault):
    what = "another run of the pipeline has this lake"
    remedy = "Wait for it, or stop it."
    temporary = True


class BatchUnderWay(faults.Fault):
    what = "a batch of this lake was interrupted"
    remedy = "Let `holdfast pipeline run` complete it first."


class OffsetGap(faults.Fault):
    what = "the lake's tables do not follow each other"
    remedy = (
        "Restore the lake from a copy, or set it aside with `holdfast pipeline backfill --anew` and run again: "
        "its histories can be read again."
    )


class LakeOutdated(faults.Fault):
    what = "a table of this lake has other columns than this version of Holdfast gives it"
    remedy = (
        "Set the lake aside with `holdfast pipeline backfill --anew` and run again: the histories can be read again."
    )


class TableTaken(faults.Fault):
    what = "this table was taken over from devices, which may have let go of it since: computed anew it would have less"
    remedy = (
        "Leave it as it is; or set the lake aside with `holdfast pipeline backfill --anew`, where it can still be searched, "
        "and begin another."
    )


class LakeOther(faults.Fault):
    what = "this lake has tables that are not of those which were to be brought up to date"
    remedy = "A relay's lake and an owner's search index are two directories; of a newer Holdfast's lake use that one."


class LakeShown(faults.Fault):
    what = "others may look into this directory, and messages would lie in it in the clear"
    remedy = "Make it its owner's alone (chmod 700), or name another."


class VersionMissing(faults.Fault):
    what = "a version of a table that a batch names cannot be opened any more"
    remedy = "Restore the lake from a copy, or set it aside with `holdfast pipeline backfill --anew` and run again."


class LakeMisnamed(faults.Fault):
    what = "the path of a lake has a character in it that means something else to those who read tables"
    remedy = "Use letters, digits, spaces and marks other than these: [ ] { } * ? % , ^ | = and the backslash."


class LakeMissing(faults.Fault):
    what = "there is no lake here"
    remedy = "Correct the path, or make one with `holdfast pipeline run`."


def plainly(name: str, action: Callable[[], Result]) -> Result:
    """Do a step."""
    del name
    return action()


class Lake:
    """The tables in one directory."""

    def __init__(self, path: Path, step: Step[Any] = plainly) -> None:
        self.path = path.absolute()
        self.private = self.path / PRIVATE
        self.step = step
        self._handles: dict[str, DeltaTable] = {}

    def check_name(self) -> None:
        """Refuse a path that some reader of a lake would take for another."""
        if _UNFIT.search(str(self.path)):
            raise LakeMisnamed(repr(str(self.path)))

    def create(self) -> None:
        """See to it that the directory is there, for its owner alone."""
        self.check_name()
        files.make_directory(self.path)
        files.make_directory(self.private)

    def check_private(self) -> None:
        """Refuse a directory that is not ours alone."""
        status = self.path.stat()
        if status.st_mode & 0o077 or status.st_uid != os.geteuid():
            raise LakeShown(str(self.path))

    def check_there(self) -> None:
        if not self.private.is_dir():
            raise LakeMissing(str(self.path))

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Have the lake to oneself, or say who has it."""
        descriptor = os.open(self.private / "pid", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
                raise LakeBusy(str(self.path), f"process {holder}") from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            shutil.rmtree(self.staging, ignore_errors=True)  # of a run that was killed
            yield
        finally:
            os.close(descriptor)

    @property
    def staging(self) -> Path:
        return self.private / "staging"

    def root(self, name: str) -> Path:
        return self.path / name

    def delta(self, name: str, version: int | None = None) -> DeltaTable | None:
        """A table at a version, or as it is now; None before its first commit."""
        if version is None and name in self._handles:
            self._handles[name].update_incremental()  # reads what is new in the log, not all of it
            return self._handles[name]
        try:
            found = DeltaTable(self.root(name), version=version)
        except TableNotFoundError:
            if version is not None:  # it was there: to call it empty would lose what it had
                raise VersionMissing(str(self.root(name)), f"version {version}") from None
            return None
        if version is None:
            self._handles[name] = found
        return found

    def committed(self, name: str) -> int:
        """The number of the last batch that a table has."""
        found = self.delta(name)
        return 0 if found is None else _batch_of(found)

    def stage(self, table: Table, frame: "DataFrame", *, is_few: bool = False) -> Path:
        """Let a table's rows be written beside the lake's tables: by Spark, or by the driver if they are few."""
        target = self.staged_path(table.name)
        chosen = frame.select(*table.schema.fieldNames())
        if is_few:
            self.step(f"write {table.name}", lambda: self._write_few(table, chosen, target))
            return target
        ordered = [*([table.partition_by] if table.partition_by else []), *table.sort_by]
        if ordered:
            chosen = chosen.sortWithinPartitions(*ordered)
        writer = chosen.write.options(maxRecordsPerFile=few.FILE_ROWS_MAX, **_FORM)
        if table.partition_by:
            writer = writer.partitionBy(table.partition_by)
        self.step(f"write {table.name}", lambda: writer.parquet(str(target)))
        return target

    def _write_few(self, table: Table, frame: "DataFrame", target: Path) -> None:
        rows = few.as_expected(frame.toArrow(), few.arrow_schema(table.schema), {})
        few.write(rows, target, table.sort_by, table.partition_by)

    def staged_path(self, name: str) -> Path:
        """A folder beside the lake's tables that is not there yet."""
        return self.staging / f"{name}-{secrets.token_hex(8)}"

    def stage_rows(self, table: Table, rows: Any) -> Path:
        """Write a few rows, an Arrow table, beside the lake's tables."""
        return self.stage_by(table.name, lambda target: few.write(rows, target))

    def stage_by(self, name: str, write: Callable[[Path], Any]) -> Path:
        """Let somebody write files beside the lake's tables."""
        target = self.staged_path(name)
        self.step(f"write {name}", lambda: write(target))
        return target

    def commit(
        self,
        table: Table,
        number: int,
        staged: Path,
        also: Sequence[Transaction] = (),
        *,
        touched: Sequence[str] = (),
    ) -> None:
        """Make staged rows part of a table, once; of a table of which parts are replaced, these and those with a row."""
        handle = self._handle(table)
        if _batch_of(handle) >= number:
            return
        added = self.step(f"move {table.name}", lambda: _moved(staged, self.root(table.name), number))
        actions = [_add(self.root(table.name), path, table) for path in added]
        removed = _removed(handle, table, actions, touched)
        transactions = [Transaction(BATCH_APPLICATION, number), *also]
        self.step(f"commit {table.name}", lambda: _commit(handle, table, [*removed, *actions], transactions))
        shutil.rmtree(staged, ignore_errors=True)

    def commit_unchanged(self, table: Table, number: int) -> None:
        """Let a table have a batch that changes nothing in it."""
        handle = self._handle(table)
        if _batch_of(handle) < number:
            transactions = [Transaction(BATCH_APPLICATION, number)]
            self.step(f"commit {table.name}", lambda: _commit(handle, table, [], transactions))

    def is_outdated(self, table: Table) -> bool:
        """Whether a table has other columns than it should; whoever has the lake knows when that changes."""
        found = self._handles.get(table.name) or self.delta(table.name)
        return found is not None and not has_columns_of(found, table)

    def rebuild(self, table: Table, number: int, staged: Path) -> None:
        """Let a table have these rows and columns after a batch, for the next one, which it then lacks if it had it; once."""
        if self.rebuilt(table, number) is None:
            added = self.step(f"move {table.name}", lambda: _moved(staged, self.root(table.name), number))
            actions = [_add(self.root(table.name), path, table) for path in added]
            transactions = [Transaction(BATCH_APPLICATION, number), Transaction(REBUILD_APPLICATION, number + 1)]
            handle = DeltaTable(self.root(table.name))
            _set_properties(handle, _properties(table, may_shrink=True))
            self.step(f"rebuild {table.name}", lambda: _commit(handle, table, actions, transactions, mode="overwrite"))
        shutil.rmtree(staged, ignore_errors=True)

    def protect(self, table: Table) -> None:
        """Let no row be taken away from a table that only grows, also where a run that computed it anew was ended early."""
        _set_properties(DeltaTable(self.root(table.name)), _properties(table))
        self._handles.pop(table.name, None)  # what it knows of the columns may be no longer so

    def is_rebuilt_for(self, table: Table, number: int) -> bool:
        """Whether a table was computed anew for this batch."""
        found = self._handles.get(table.name) or self.delta(table.name)
        return found is not None and found.transaction_version(REBUILD_APPLICATION) == number

    def rebuilt(self, table: Table, number: int) -> int | None:
        """The version in which a table that was computed anew has a batch and not the next one; None if it was not, or with other columns."""
        then = self.after(table, number)
        if then is None or (then.transaction_version(REBUILD_APPLICATION) or 0) <= number:
            return None
        return then.version() if has_columns_of(then, table) else None

    def forget_rebuilt(self, table: Table, number: int) -> None:
        """Let a table that was computed anew for the batch after this one be computed anew once more."""
        handle, transactions = self._handle(table), [Transaction(REBUILD_APPLICATION, number)]
        self.step(f"forget {table.name}", lambda: _commit(handle, table, [], transactions))

    def after(self, table: Table, number: int) -> DeltaTable | None:
        """A table in the last version in which it has a batch and not the next one; None if there is none."""
        found = self.delta(table.name)
        version = -1 if found is None else found.version()
        while version >= 0:
            then = DeltaTable(self.root(table.name), version=version)
            if _batch_of(then) <= number:
                return then if _batch_of(then) == number else None
            version -= 1
        return None

    def batch_files(self, handle: DeltaTable, number: int) -> list[Path]:
        """The files that a batch added to a table; they bear its number until they are compacted."""
        return [path for path in live_files(handle) if path.name.startswith(_prefix(number))]

    def compact(self, table: Table, small_files_max: int = SMALL_FILES_MAX) -> int:
        """Join small files where a partition has too many; the version after that."""
        handle = self._handle(table)
        before = set(live_files(handle))
        for values in _crowded(handle, table, small_files_max):
            filters = [(name, "=", value) for name, value in values] or None
            with logged(handle):
                self.step(
                    f"compact {table.name}",
                    lambda filters=filters: handle.optimize.compact(  # type: ignore[misc]  # bound now, called now
                        partition_filters=filters, target_size=TARGET_FILE_BYTES
                    ),
                )
        sync_files([path for path in live_files(handle) if path not in before])  # what they replace may go from here on
        self._name_by_content(handle, table)
        return handle.version()

    def _name_by_content(self, handle: DeltaTable, table: Table) -> None:
        """Give files that others named, who joined them, names that say what is in them; they stay where they are."""
        root = self.root(table.name)
        nameless = [live for live in _live(handle, table) if content.told_by(Path(live[0])) is None]
        if not nameless:
            return
        linked = [self.step(f"name {table.name}", lambda path=root / path: _linked(path)) for path, *_ in nameless]  # type: ignore[misc]  # likewise
        sync_files(linked)
        now_ms = int(time.time() * 1000)
        removed = [
            RemoveAction(path=path, data_change=False, deletion_timestamp=now_ms, size=size, partition_values=values)
            for path, size, values in nameless
        ]
        added = [_add(root, path, table, is_new=False) for path in linked]
        self.step(f"commit {table.name}", lambda: _commit(handle, table, [*removed, *added], []))

    def vacuum(self, table: Table, keep_versions: Sequence[int], hours: int = VACUUM_HOURS) -> list[str]:
        """Remove files that neither these versions nor the newest one need, what killed runs left among them."""
        handle = self.delta(table.name)
        if handle is None:
            return []
        _set_properties(handle, _properties(table))
        keep = sorted({*keep_versions, handle.version()})
        with logged(handle):
            removed: list[str] = self.step(
                f"vacuum {table.name}",
                lambda: handle.vacuum(
                    retention_hours=hours,
                    dry_run=False,
                    enforce_retention_duration=False,
                    full=True,
                    keep_versions=keep,
                ),
            )
        return removed

    def files(self, name: str, version: int | None) -> list[Path]:
        """The files of a table at a version; none where there is no such version yet."""
        handle = None if version is None else self.delta(name, version)
        return [] if handle is None else live_files(handle)

    def files_frame(self, spark: "SparkSession", table: Table, paths: Sequence[Path]) -> "DataFrame":
        """The rows of some of a table's files."""
        if few.are_few(paths):
            return few.frame(spark, table.schema, few.read(table.schema, paths, table.partition_by))
        reader = spark.read.schema(table.schema)
        if table.is_stored:
            reader = reader.option("basePath", str(self.root(table.name)))
        return reader.parquet(*map(str, paths)).select(*table.schema.fieldNames())

    def _handle(self, table: Table) -> DeltaTable:
        found = self.delta(table.name)
        if found is not None:
            if not has_columns_of(found, table):
                raise LakeOutdated(str(self.root(table.name)))
            _set_properties(found, _properties(table))
            return found
        made: DeltaTable = self.step(
            f"create {table.name}",
            lambda: DeltaTable.create(
                self.root(table.name),
                schema=delta_schema(table),
                mode="ignore",
                partition_by=table.partition_by,
                name=table.name,
                description=table.meaning,
                configuration=_properties(table),
            ),
        )
        sync_log(made, -1)
        for directory in (self.root(table.name), self.path):
            files.sync_directory(directory)
        self._handles[table.name] = made
        return made


def empty(spark: "SparkSession", schema: "StructType") -> "DataFrame":
    """No rows, said so that Spark knows it while it plans, and drops whatever would be computed from them."""
    return few.frame(spark, schema, few.read(schema, []))


def delta_schema(table: Table) -> Schema:
    """Spark's and Delta's JSON of a schema are the same."""
    return Schema.from_json(table.schema.json())


def live_files(handle: DeltaTable) -> list[Path]:
    """Where the rows of an open table lie."""
    said = handle.table_uri.removeprefix("file://")
    return [root_of(handle) / uri.removeprefix(said) for uri in handle.file_uris()]


def misplaced(handle: DeltaTable, table: Table) -> list[str]:
    """Files that lie in the folder of another partition than the log says: who reads by folder would see other rows."""
    name = table.partition_by
    if name is None:
        return []
    return [path for path, _, values in _live(handle, table) if f"{name}={values[name]}" != Path(path).parent.name]


def has_columns_of(handle: DeltaTable, table: Table) -> bool:
    """Whether an open table has the columns that this version of Holdfast gives it."""
    return [field.name for field in handle.schema().fields] == table.schema.fieldNames()


def _properties(table: Table, *, may_shrink: bool = False) -> dict[str, str]:
    """What Delta is told of a table. Its log keeps all versions, however old: rows of `run` name them."""
    kept = {_FORGETS_VERSIONS: "false"}  # said by the table, because compaction and vacuum do not heed it elsewhere
    return kept | ({_APPEND_ONLY: "false" if may_shrink else "true"} if table.writing is Writing.APPEND else {})


def _set_properties(handle: DeltaTable, properties: dict[str, str]) -> None:
    """Tell Delta what it does not know yet; tables of older lakes forgot versions."""
    if not properties.items() <= handle.metadata().configuration.items():
        with logged(handle):
            handle.alter.set_table_properties(properties)


def _batch_of(handle: DeltaTable) -> int:
    return handle.transaction_version(BATCH_APPLICATION) or 0


def _moved(staged: Path, root: Path, number: int) -> list[Path]:
    """Give staged files their place below the table, durably; files without a row stay behind."""
    moved = []
    for source in sorted(staged.rglob("*.parquet")):
        if statistics.rows_of(source) == 0:
            continue
        target = root / source.parent.relative_to(staged) / content.name_for(_prefix(number), source)
        target.parent.mkdir(exist_ok=True)
        source.rename(target)
        moved.append(target)
    sync_files(moved)
    files.sync_directory(root)
    return moved


def _prefix(number: int) -> str:
    return f"batch-{number:08d}-"


def _linked(path: Path) -> Path:
    """A second name of a file, one that says what is in it; the first goes when nobody needs it any more."""
    target = path.with_name(content.name_for("joined-", path))
    try:
        os.link(path, target)
    except OSError:  # not every file system has second names
        shutil.copyfile(path, target)
    return target


def _add(root: Path, path: Path, table: Table, *, is_new: bool = True) -> AddAction:
    relative = path.relative_to(root)
    values = dict(part.split("=", 1) for part in relative.parts[:-1])
    status = path.stat()
    return AddAction(
        path=str(relative),
        size=status.st_size,
        partition_values=values,
        modification_time=int(status.st_mtime * 1000),
        data_change=is_new,
        stats=statistics.statistics(path, table.schema),
    )


def _removed(
    handle: DeltaTable, table: Table, added: Sequence[AddAction], touched: Sequence[str]
) -> list[RemoveAction]:
    """The files whose rows the new ones replace."""
    if table.writing in _APPENDING:
        return []
    now_ms = int(time.time() * 1000)  # the Delta log's own time, which decides when a file may be vacuumed
    parts = [dict(action.partition_values) for action in added]
    parts += [{table.partition_by: value} for value in touched if table.partition_by is not None]
    return [
        RemoveAction(path=path, data_change=True, deletion_timestamp=now_ms, size=size, partition_values=values)
        for path, size, values in _live(handle, table)
        if table.writing is Writing.REPLACE or values in parts
    ]


def _live(handle: DeltaTable, table: Table) -> list[tuple[str, int, dict[str, str | None]]]:
    """Path, size and partition of every live file, as the log has them."""
    found = []
    for row in pa.table(handle.get_add_actions(flatten=False)).to_pylist():
        partition = row.get("partition_values") or row.get("partition") or {}
        values = {name: None if value is None else str(value) for name, value in partition.items()}
        found.append((row["path"], row["size_bytes"], values if table.partition_by else {}))
    return found


def _crowded(handle: DeltaTable, table: Table, small_files_max: int) -> list[tuple[tuple[str, str | None], ...]]:
    """The partitions that have too many small files."""
    counts: dict[tuple[tuple[str, str | None], ...], int] = {}
    for _, size, values in _live(handle, table):
        key = tuple(sorted(values.items()))
        counts[key] = counts.get(key, 0) + (size < SMALL_FILE_BYTES)
    return [key for key, count in counts.items() if count > small_files_max]


def _commit(
    handle: DeltaTable,
    table: Table,
    actions: list[Any],
    transactions: Sequence[Transaction],
    mode: Literal["append", "overwrite"] = "append",
) -> None:
    with logged(handle):
        handle.create_write_transaction(
            actions,
            mode=mode,
            schema=delta_schema(table),
            partition_by=table.partition_by,
            commit_properties=CommitProperties(app_transactions=list(transactions)),
        )
