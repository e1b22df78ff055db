"""A lake that says a batch is in it has it on disk: the relay prunes on that word. No Spark."""

import os
import stat
from pathlib import Path

import pytest

from holdfast.pipeline.lake import Lake
from holdfast.pipeline.table import Table
from tests.pipeline.test_lake import MADE, SWAPPED, add, rows


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """What was put on disk, by name; a disk that forgets all else at the next power cut."""
    found: set[Path] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


@pytest.fixture
def lake(tmp_path: Path, synced: set[Path]) -> Lake:
    found = Lake(tmp_path / "lake")
    found.create()
    return found


def forgotten(lake: Lake, synced: set[Path]) -> set[Path]:
    """Files of the tables, and directories with names in them, that a power cut could take."""
    whole = {lake.path, *(path for path in lake.path.rglob("*") if lake.private not in (path, *path.parents))}
    return {path for path in whole if stat.S_ISREG(path.stat().st_mode) or any(path.iterdir())} - synced


@pytest.mark.parametrize("table", [MADE, SWAPPED], ids=lambda table: table.name)
def test_what_a_batch_commits_is_on_disk_with_every_name_that_leads_to_it(
    lake: Lake, synced: set[Path], table: Table
) -> None:
    synced.clear()  # names that are there already say nothing of those to come
    add(lake, table, 1, rows(1, 4))
    assert forgotten(lake, synced) == set()
    synced.clear()
    add(lake, table, 2, rows(5, 4))
    lake.commit_unchanged(table, 3)
    log = lake.root(table.name) / "_delta_log"
    assert {log, log / f"{2:020d}.json", log / f"{3:020d}.json"} <= synced


def test_what_compaction_wrote_is_on_disk_before_what_it_replaced_may_go(lake: Lake, synced: set[Path]) -> None:
    for number in range(1, 4):
        add(lake, MADE, number, rows(number * 10, 2))
    lake.compact(MADE, small_files_max=1)
    lake.vacuum(MADE, [], hours=0)
    assert forgotten(lake, synced) == set()
