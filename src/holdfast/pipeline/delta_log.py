"""The logs of Delta tables: what a commit did; and the syncing of commits to disk, with every directory entry that leads to them.

They are synced because a relay prunes when we say that they are there.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
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


def actions(root: Path, version: int) -> list[dict[str, Any]]:
    """What the commit did that made a version of a table."""
    lines = (root / "_delta_log" / f"{version:020d}.json").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines if line]


def transactions(commit: Sequence[dict[str, Any]]) -> set[tuple[str, int]]:
    """Of a commit the applications and versions for which it was made."""
    return {(one["txn"]["appId"], one["txn"]["version"]) for one in commit if "txn" in one}


def changes_rows(commit: Sequence[dict[str, Any]]) -> bool:
    """Whether a commit adds or removes rows; one that joins or renames files says that it does not."""
    return any(one[kind].get("dataChange", True) for one in commit for kind in ("add", "remove") if kind in one)


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
