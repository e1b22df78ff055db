"""One Delta table that is open: its columns, properties and live files, and the commits that add and remove files."""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from holdfast.pipeline import content, statistics
from holdfast.pipeline.delta_log import logged, root_of, sync_files
from holdfast.pipeline.table import Table, Writing
from holdfast.store import files

BATCH_APPLICATION = "holdfast batch"
"""The application id of a table's commits; the version of such a transaction is the number of the batch."""

SMALL_FILE_BYTES = 33_554_432

_APPEND_ONLY = "delta.appendOnly"
_FORGETS_VERSIONS = "delta.enableExpiredLogCleanup"
_APPENDING = (Writing.APPEND, Writing.RECORD)

Partition = dict[str, str | None]


@dataclass(frozen=True)
class LiveFile:
    """A file that an open table consists of, as its log has it."""

    path: str  # below the table's directory
    size: int
    partition: Partition


def batch_of(handle: DeltaTable) -> int:
    """The number of the last batch that was committed to a table; 0 before the first."""
    return handle.transaction_version(BATCH_APPLICATION) or 0


def delta_schema(table: Table) -> Schema:
    """The schema of a table in Delta's types; its JSON is the same as Spark's."""
    return Schema.from_json(table.schema.json())


def has_columns_of(handle: DeltaTable, table: Table) -> bool:
    """Whether an open table has the columns that this version of Holdfast gives it."""
    return [field.name for field in handle.schema().fields] == table.schema.fieldNames()


def properties(table: Table, *, may_shrink: bool = False) -> dict[str, str]:
    """The Delta properties of a table. Its log keeps all versions, however old, because rows of `run` name them."""
    kept = {_FORGETS_VERSIONS: "false"}  # as a table property, because compaction and vacuum heed no other setting
    return kept | ({_APPEND_ONLY: "false" if may_shrink else "true"} if table.writing is Writing.APPEND else {})


def set_properties(handle: DeltaTable, wanted: dict[str, str]) -> None:
    """Set the properties that a table lacks; tables of older lakes lack that they keep all versions."""
    if not wanted.items() <= handle.metadata().configuration.items():
        with logged(handle):
            handle.alter.set_table_properties(wanted)


def live_files(handle: DeltaTable) -> list[Path]:
    """The paths of the files that an open table consists of."""
    said = handle.table_uri.removeprefix("file://")
    return [root_of(handle) / uri.removeprefix(said) for uri in handle.file_uris()]


def misplaced(handle: DeltaTable, table: Table) -> list[str]:
    """Files that lie in the folder of another partition than the log says: a reader that goes by folders would see other rows."""
    name = table.partition_by
    if name is None:
        return []
    live = _live(handle, table)
    return [one.path for one in live if f"{name}={one.partition[name]}" != Path(one.path).parent.name]


def crowded(handle: DeltaTable, table: Table, small_files_max: int) -> list[Partition]:
    """The partitions with more than so many small files."""
    counts: dict[tuple[tuple[str, str | None], ...], int] = {}
    for one in _live(handle, table):
        key = tuple(sorted(one.partition.items()))
        counts[key] = counts.get(key, 0) + (one.size < SMALL_FILE_BYTES)
    return [dict(key) for key, count in counts.items() if count > small_files_max]


def unnamed(handle: DeltaTable, table: Table) -> list[LiveFile]:
    """Files whose names have no digest of their content: Delta named them when it compacted."""
    return [one for one in _live(handle, table) if content.told_by(Path(one.path)) is None]


def moved(staged: Path, root: Path, number: int) -> list[Path]:
    """Move a batch's staged files below their table, durably; returns their new paths. Files without rows are left behind."""
    found = []
    for source in sorted(staged.rglob("*.parquet")):
        if statistics.rows_of(source) == 0:
            continue
        target = root / source.parent.relative_to(staged) / content.name_for(batch_prefix(number), source)
        target.parent.mkdir(exist_ok=True)
        source.rename(target)
        found.append(target)
    sync_files(found)
    files.sync_directory(root)
    return found


def linked(path: Path) -> Path:
    """Give a file a second name with the digest of its content, and return it; vacuum removes the first when it is no longer needed."""
    target = path.with_name(content.name_for("joined-", path))
    try:
        os.link(path, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, target)
    return target


def added(root: Path, paths: Sequence[Path], table: Table, *, is_new: bool = True) -> list[AddAction]:
    """The actions that make files part of a table; with `is_new` false their rows were part of it under other names."""
    return [_add(root, path, table, is_new=is_new) for path in paths]


def _add(root: Path, path: Path, table: Table, *, is_new: bool) -> AddAction:
    relative = path.relative_to(root)
    status = path.stat()
    return AddAction(
        path=str(relative),
        size=status.st_size,
        partition_values=dict(part.split("=", 1) for part in relative.parts[:-1]),
        modification_time=int(status.st_mtime * 1000),
        data_change=is_new,
        stats=statistics.statistics(path, table.schema),
    )


def replaced(handle: DeltaTable, table: Table, new: Sequence[AddAction], touched: Sequence[str]) -> list[RemoveAction]:
    """The actions that remove what new files replace: nothing, the partitions that are touched or have a new file, or everything."""
    if table.writing in _APPENDING:
        return []
    parts = [dict(action.partition_values) for action in new]
    parts += [{table.partition_by: value} for value in touched if table.partition_by is not None]
    is_all = table.writing is Writing.REPLACE
    return removed([one for one in _live(handle, table) if is_all or one.partition in parts])


def removed(live: Sequence[LiveFile], *, is_lost: bool = True) -> list[RemoveAction]:
    """The actions that remove files from a table; with `is_lost` false their rows stay in it under other names."""
    now_ms = int(time.time() * 1000)  # Delta's own clock, by which vacuum decides when a file may go
    return [
        RemoveAction(
            path=one.path,
            data_change=is_lost,
            deletion_timestamp=now_ms,
            size=one.size,
            partition_values=one.partition,
        )
        for one in live
    ]


def commit(
    handle: DeltaTable,
    table: Table,
    actions: list[Any],
    transactions: Sequence[Transaction],
    mode: Literal["append", "overwrite"] = "append",
) -> None:
    """Commit actions together with the transactions that say for what, durably."""
    with logged(handle):
        handle.create_write_transaction(
            actions,
            mode=mode,
            schema=delta_schema(table),
            partition_by=table.partition_by,
            commit_properties=CommitProperties(app_transactions=list(transactions)),
        )


def _live(handle: DeltaTable, table: Table) -> list[LiveFile]:
    found = []
    for row in pa.table(handle.get_add_actions(flatten=False)).to_pylist():
        partition = row.get("partition_values") or row.get("partition") or {}
        values = {name: None if value is None else str(value) for name, value in partition.items()}
        found.append(LiveFile(row["path"], row["size_bytes"], values if table.partition_by else {}))
    return found


def batch_prefix(number: int) -> str:
    """How the names of the files begin that a batch adds."""
    return f"batch-{number:08d}-"
