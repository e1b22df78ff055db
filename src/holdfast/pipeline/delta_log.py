"""Syncing of commits to disk, with every directory entry that leads to them: a relay prunes because we say that they are there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable

from holdfast.store import files


def root_of(handle: DeltaTable) -> Path:
    """The directory of a table; its handle has a URI, in which a space is escaped."""
    return Path(unquote(handle.table_uri.removeprefix("file://")))


def sync_files(paths: Sequence[Path]) -> None:
    """Sync files and the directories that name them."""
    for path in paths:
        files.sync_file(path)
    for directory in {path.parent for path in paths}:
        files.sync_directory(directory)


@contextmanager
def logged(handle: DeltaTable) -> Iterator[None]:
    """Sync what is committed to a table inside the block, and update its handle, which does not do so by itself."""
    before = handle.version()
    yield
    handle.update_incremental()
    sync_log(handle, before)


def sync_log(handle: DeltaTable, after: int) -> None:
    """Sync the commits of a table after a version, and the log checkpoints that were written with them."""
    log = root_of(handle) / "_delta_log"
    for version in range(after + 1, handle.version() + 1):
        files.sync_file(log / f"{version:020d}.json")
        summary = log / f"{version:020d}.checkpoint.parquet"
        if summary.exists():
            files.sync_file(summary)
            files.sync_file(log / "_last_checkpoint")
    files.sync_directory(log)
