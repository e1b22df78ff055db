"""Puts commits of tables on disk, with every directory on the way: a relay prunes because the lake says that it has the entries."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable

from holdfast.store import files


def root_of(handle: DeltaTable) -> Path:
    """The path of a table's directory; a handle gives it as a URL, in which a space is escaped."""
    return Path(unquote(handle.table_uri.removeprefix("file://")))


def sync_files(paths: Sequence[Path]) -> None:
    """Put files and their names on disk."""
    for path in paths:
        files.sync_file(path)
    for directory in {path.parent for path in paths}:
        files.sync_directory(directory)


@contextmanager
def logged(handle: DeltaTable) -> Iterator[None]:
    """Put on disk what is committed to a table inside of the `with` block."""
    before = handle.version()
    yield
    handle.update_incremental()
    sync_log(handle, before)


def sync_log(handle: DeltaTable, after: int) -> None:
    """Put the commits of a table after a version on disk, and the summaries of its log that were written with them."""
    log = root_of(handle) / "_delta_log"
    for version in range(after + 1, handle.version() + 1):
        files.sync_file(log / f"{version:020d}.json")
        summary = log / f"{version:020d}.checkpoint.parquet"
        if summary.exists():
            files.sync_file(summary)
            files.sync_file(log / "_last_checkpoint")
    files.sync_directory(log)
