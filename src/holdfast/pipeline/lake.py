"""The lake: Delta tables in a directory. Spark or its tasks write the files, and the driver alone commits them, with exact statistics.

Delta has no commit over several tables, so a batch commits each table once, under its number, and the table `run` last; readers open the
versions that the last row of `run` names. A table that already has a batch is not committed again: the handle that commits is asked for
the number. Every write and every commit goes through `step`, so that a test can kill the process there.
"""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, Transaction

from holdfast.pipeline import delta_table, few
from holdfast.pipeline.delta_log import actions, changes_rows, logged, sync_files, sync_log, transactions
from holdfast.pipeline.delta_table import BATCH_APPLICATION, batch_of, has_columns_of, live_files
from holdfast.pipeline.table import Table
from holdfast.store import faults, files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

REBUILD_APPLICATION = "holdfast rebuild"
"""The application id of commits that computed a table anew; the version of such a transaction is the batch before which that was done."""

SMALL_FILES_MAX = 16
"""A partition with more small files than this is compacted."""

TARGET_FILE_BYTES = 134_217_728

VACUUM_HOURS = 24
"""How long vacuum keeps a file after it was replaced, for readers that opened the table before."""

PRIVATE = ".holdfast"
"""The directory in the lake that is not a table: it has the key, the lock, the plan and the staged files."""

_WITHOUT_DICTIONARY = {f"parquet.enable.dictionary#{name}": "false" for name in few.UNLIKE}

# Characters that some reader of Delta tables takes for a pattern, an escape or a partition.
_UNFIT = re.compile(r"[\[\]{}*?%,^|=\\\x00-\x1f\ud800-\udfff]")

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
    what = "`history` in this lake does not end where the last complete batch says"
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
    what = "this table was copied from devices, which may have deleted messages since: computed anew it would lack them"
    remedy = (
        "Leave it as it is; or set the lake aside with `holdfast pipeline backfill --anew`, where it can still be searched, "
        "and begin another."
    )


class LakeOther(faults.Fault):
    what = "this lake is of another kind, or of a newer Holdfast"
    remedy = "Keep a relay's lake and an index of messages in two directories; use a newer lake with the Holdfast that made it."


class LakeShown(faults.Fault):
    what = "other users may open this directory, and messages would lie in it in plain text"
    remedy = "Close it to others (chmod 700), or name another directory."


class VersionMissing(faults.Fault):
    what = "the version of a table that a batch names cannot be opened any more"
    remedy = "Restore the lake from a copy, or set it aside with `holdfast pipeline backfill --anew` and run again."


class LakeMisnamed(faults.Fault):
    what = "the path of a lake has a character in it that readers of Delta tables take for something else"
    remedy = "Use letters, digits, spaces and marks other than these: [ ] { } * ? % , ^ | = and the backslash."


class LakeMissing(faults.Fault):
    what = "there is no lake here"
    remedy = "Correct the path, or make one with `holdfast pipeline run`."


def plainly(name: str, action: Callable[[], Result]) -> Result:
    """Do a step; tests pass other functions, which kill the process before or after one."""
    del name
    return action()


class Lake:
    """The tables in one directory."""

    def __init__(self, path: Path, step: Step[Any] = plainly) -> None:
        self.path = path.resolve()  # as Delta names its files, also below a link
        self.private = self.path / PRIVATE
        self.step = step
        self._handles: dict[str, DeltaTable] = {}

    def check_name(self) -> None:
        """Refuse a path that some reader of Delta tables would take for another."""
        if _UNFIT.search(str(self.path)):
            raise LakeMisnamed(repr(str(self.path)))

    def create(self) -> None:
        """Make the directory, for its owner alone, if it does not exist."""
        self.check_name()
        files.make_directory(self.path)
        files.make_directory(self.private)

    def check_private(self) -> None:
        """Refuse a directory that other users may open, or that belongs to another."""
        status = self.path.stat()
        if status.st_mode & 0o077 or status.st_uid != os.geteuid():
            raise LakeShown(str(self.path))

    def check_there(self) -> None:
        if not self.private.is_dir():
            raise LakeMissing(str(self.path))

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the lake for this process; raises `LakeBusy` with the id of the process that has it."""
        descriptor = os.open(self.private / "pid", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
                raise LakeBusy(str(self.path), f"process {holder}") from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            shutil.rmtree(self.staging, ignore_errors=True)  # left by a run that was killed
            yield
        finally:
            os.close(descriptor)

    @property
    def staging(self) -> Path:
        return self.private / "staging"

    def root(self, name: str) -> Path:
        return self.path / name

    def delta(self, name: str, version: int | None = None) -> DeltaTable | None:
        """A table at a version, or at its newest; None before its first commit."""
        if version is None and name in self._handles:
            self._handles[name].update_incremental()  # reads what is new in the log, not all of it
            return self._handles[name]
        try:
            found = DeltaTable(self.root(name), version=version)
        except TableNotFoundError:
            if version is not None:  # a batch names this version: to call the table empty would lose its rows
                raise VersionMissing(str(self.root(name)), f"version {version}") from None
            return None
        if version is None:
            self._handles[name] = found
        return found

    def committed(self, name: str) -> int:
        """The number of the last batch that a table has."""
        found = self.delta(name)
        return 0 if found is None else batch_of(found)

    def stage(self, table: Table, frame: "DataFrame", *, is_few: bool = False) -> Path:
        """Write a table's rows to staging, with Spark or, if they are few, with the driver; returns their folder."""
        target = self.staged_path(table.name)
        chosen = frame.select(*table.schema.fieldNames())
        if is_few:
            self.step(f"write {table.name}", lambda: self._write_few(table, chosen, target))
            return target
        ordered = [*([table.partition_by] if table.partition_by else []), *table.sort_by]
        if ordered:
            chosen = chosen.sortWithinPartitions(*ordered)
        writer = chosen.write.options(maxRecordsPerFile=few.FILE_ROWS_MAX, **_WITHOUT_DICTIONARY)
        if table.partition_by:
            writer = writer.partitionBy(table.partition_by)
        self.step(f"write {table.name}", lambda: writer.parquet(str(target)))
        return target

    def _write_few(self, table: Table, frame: "DataFrame", target: Path) -> None:
        rows = few.as_expected(frame.toArrow(), few.arrow_schema(table.schema), {})
        few.write(rows, target, table.sort_by, table.partition_by)

    def staged_path(self, name: str) -> Path:
        """A new folder name in staging."""
        return self.staging / f"{name}-{secrets.token_hex(8)}"

    def stage_rows(self, table: Table, rows: Any) -> Path:
        """Write an Arrow table to staging; returns its folder."""
        return self.stage_by(table.name, lambda target: few.write(rows, target))

    def stage_by(self, name: str, write: Callable[[Path], Any]) -> Path:
        """Let a function write files to staging; returns their folder."""
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
        """Make staged rows part of a table under a batch's number, unless it has the batch already.

        In a table whose partitions are replaced, those that a staged row lies in and those in `touched` are; `also` are more
        transactions of the same commit.
        """
        handle = self._handle(table)
        if batch_of(handle) >= number:
            return
        actions = self._moved(table, staged, number)
        replaced = delta_table.replaced(handle, table, actions, touched)
        transactions = [Transaction(BATCH_APPLICATION, number), *also]
        self.step(
            f"commit {table.name}", lambda: delta_table.commit(handle, table, [*replaced, *actions], transactions)
        )
        shutil.rmtree(staged, ignore_errors=True)

    def commit_unchanged(self, table: Table, number: int) -> None:
        """Record in a table's log that it has a batch, which changes nothing in it."""
        handle = self._handle(table)
        if batch_of(handle) < number:
            transactions = [Transaction(BATCH_APPLICATION, number)]
            self.step(f"commit {table.name}", lambda: delta_table.commit(handle, table, [], transactions))

    def _moved(self, table: Table, staged: Path, number: int) -> list[AddAction]:
        """Move staged files below their table; returns the actions that add them."""
        root = self.root(table.name)
        paths = self.step(f"move {table.name}", lambda: delta_table.moved(staged, root, number))
        return delta_table.added(root, paths, table)

    def is_outdated(self, table: Table) -> bool:
        """Whether a table has other columns than this version of Holdfast gives it. An open handle is not updated: only we change columns."""
        found = self._handles.get(table.name) or self.delta(table.name)
        return found is not None and not has_columns_of(found, table)

    def rebuild(self, table: Table, number: int, staged: Path) -> None:
        """Replace a table by staged rows, in the columns of this version, as it is after a batch; once for the next batch.

        If the table had the next batch already, from a run that was interrupted, it lacks it afterwards and gets it again.
        """
        if self.rebuilt(table, number) is None:
            actions = self._moved(table, staged, number)
            transactions = [Transaction(BATCH_APPLICATION, number), Transaction(REBUILD_APPLICATION, number + 1)]
            handle = DeltaTable(self.root(table.name))
            delta_table.set_properties(handle, delta_table.properties(table, may_shrink=True))
            self.step(
                f"rebuild {table.name}", lambda: delta_table.commit(handle, table, actions, transactions, "overwrite")
            )
        shutil.rmtree(staged, ignore_errors=True)

    def protect(self, table: Table) -> None:
        """Make an append table append-only again; a run that was killed while rebuilding it left it open."""
        delta_table.set_properties(DeltaTable(self.root(table.name)), delta_table.properties(table))
        self._handles.pop(table.name, None)  # its columns may have changed

    def is_rebuilt_for(self, table: Table, number: int) -> bool:
        """Whether a table was computed anew before this batch."""
        found = self._handles.get(table.name) or self.delta(table.name)
        return found is not None and found.transaction_version(REBUILD_APPLICATION) == number

    def rebuilt(self, table: Table, number: int) -> int | None:
        """The version of a table that was computed anew after a batch, before the next; None if it was not, or has other columns."""
        then = self.after(table, number)
        if then is None or (then.transaction_version(REBUILD_APPLICATION) or 0) <= number:
            return None
        return then.version() if has_columns_of(then, table) else None

    def forget_rebuilt(self, table: Table, number: int) -> None:
        """Let a table that was computed anew after this batch count as not computed, so that it is computed once more."""
        handle, transactions = self._handle(table), [Transaction(REBUILD_APPLICATION, number)]
        self.step(f"forget {table.name}", lambda: delta_table.commit(handle, table, [], transactions))

    def after(self, table: Table, number: int) -> DeltaTable | None:
        """A table in its last version that has this batch and not the next one; None if there is none."""
        found = self.delta(table.name)
        version = -1 if found is None else found.version()
        while version >= 0:
            then = DeltaTable(self.root(table.name), version=version)
            if batch_of(then) <= number:
                return then if batch_of(then) == number else None
            version -= 1
        return None

    def as_left(self, name: str, number: int) -> DeltaTable | None:
        """A table as a batch left it, whatever was committed to it since; None before its first commit."""
        handle, root = self.delta(name), self.root(name)
        if handle is None:
            return None
        version = handle.version()
        while version > 0 and (BATCH_APPLICATION, number) not in transactions(actions(root, version)):
            version -= 1
        return handle if version == handle.version() else self.delta(name, version)

    def foreign(self, name: str, version: int, number: int) -> int | None:
        """The first version of a table after this one, of a batch, whose rows somebody else changed; None if there is none.

        Our own commits change them for the next batch only: by its rows, or by computing the table anew before it.
        """
        handle, root = self.delta(name), self.root(name)
        ours = {(BATCH_APPLICATION, number + 1), (REBUILD_APPLICATION, number + 1)}
        later = range(version + 1, 0 if handle is None else handle.version() + 1)
        commits = ((one, actions(root, one)) for one in later)
        return next((one for one, done in commits if changes_rows(done) and not ours & transactions(done)), None)

    def batch_files(self, handle: DeltaTable, number: int) -> list[Path]:
        """The files that a batch added to a table; their names have its number until they are compacted."""
        return [path for path in live_files(handle) if path.name.startswith(delta_table.batch_prefix(number))]

    def compact(self, table: Table, small_files_max: int = SMALL_FILES_MAX) -> int:
        """Join the small files of every partition that has too many; returns the version after that."""
        handle = self._handle(table)
        before = set(live_files(handle))
        for partition in delta_table.crowded(handle, table, small_files_max):
            filters = [(name, "=", value) for name, value in partition.items()] or None
            with logged(handle):
                self.step(
                    f"compact {table.name}",
                    lambda filters=filters: handle.optimize.compact(  # type: ignore[misc]  # bound now, called now
                        partition_filters=filters, target_size=TARGET_FILE_BYTES
                    ),
                )
        # From here on a vacuum may remove the files that these replace.
        sync_files([path for path in live_files(handle) if path not in before])
        self._name_by_content(handle, table)
        return handle.version()

    def _name_by_content(self, handle: DeltaTable, table: Table) -> None:
        """Give files that Delta joined names with the digest of their content; the rows stay where they are."""
        root, unnamed = self.root(table.name), delta_table.unnamed(handle, table)
        if not unnamed:
            return
        paths = [root / one.path for one in unnamed]
        linked = [self.step(f"name {table.name}", lambda path=path: delta_table.linked(path)) for path in paths]  # type: ignore[misc]  # likewise
        sync_files(linked)
        removed = delta_table.removed(unnamed, is_lost=False)
        added = delta_table.added(root, linked, table, is_new=False)
        self.step(f"commit {table.name}", lambda: delta_table.commit(handle, table, [*removed, *added], []))

    def vacuum(self, table: Table, keep_versions: Sequence[int], hours: int = VACUUM_HOURS) -> list[str]:
        """Remove files that neither these versions nor the newest one need, including what killed runs left; returns their paths."""
        handle = self.delta(table.name)
        if handle is None:
            return []
        delta_table.set_properties(handle, delta_table.properties(table))
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
        """The files of a table at a version; none where the version is None."""
        handle = None if version is None else self.delta(name, version)
        return [] if handle is None else live_files(handle)

    def files_frame(self, spark: "SparkSession", table: Table, paths: Sequence[Path]) -> "DataFrame":
        """The rows of some of a table's files as a data frame."""
        if few.are_few(paths):
            return few.frame(spark, table.schema, few.read(table.schema, paths, table.partition_by))
        reader = spark.read.schema(table.schema)
        if table.is_stored:
            reader = reader.option("basePath", str(self.root(table.name)))
        return reader.parquet(*map(str, paths)).select(*table.schema.fieldNames())

    def _handle(self, table: Table) -> DeltaTable:
        """A table to write to, made if it does not exist; refused if it has other columns."""
        found = self.delta(table.name)
        if found is not None:
            if not has_columns_of(found, table):
                raise LakeOutdated(str(self.root(table.name)))
            delta_table.set_properties(found, delta_table.properties(table))
            return found
        return self._created(table)

    def _created(self, table: Table) -> DeltaTable:
        made: DeltaTable = self.step(
            f"create {table.name}",
            lambda: DeltaTable.create(
                self.root(table.name),
                schema=delta_table.delta_schema(table),
                mode="ignore",
                partition_by=table.partition_by,
                name=table.name,
                description=table.meaning,
                configuration=delta_table.properties(table),
            ),
        )
        sync_log(made, -1)
        for directory in (self.root(table.name), self.path):
            files.sync_directory(directory)
        self._handles[table.name] = made
        return made


def empty(spark: "SparkSession", schema: "StructType") -> "DataFrame":
    """A data frame without rows, which Spark knows to be empty while it plans: what would be computed from it is dropped."""
    return few.frame(spark, schema, few.read(schema, []))
