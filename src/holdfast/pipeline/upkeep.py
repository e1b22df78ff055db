"""The upkeep of a lake, without Spark: small files are joined, files that nothing needs are removed, the whole lake is set aside."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.pipeline import kind
from holdfast.pipeline.certificate import KEY_FILE
from holdfast.pipeline.lake import SMALL_FILES_MAX, VACUUM_HOURS, BatchUnderWay, Lake
from holdfast.pipeline.shelf import Run, Shelf
from holdfast.pipeline.table import Table, Writing
from holdfast.store import files


def compact(
    lake: Lake, tables: Mapping[str, Table], last: Run, small_files_max: int = SMALL_FILES_MAX
) -> dict[str, int]:
    """Join small files of the tables that no interrupted batch has touched: its own files must stay as they are.

    Returns how many files each table has now that had too many.
    """
    joined = {}
    for table in tables.values():
        grows = table.is_stored and table.writing is not Writing.REPLACE and not lake.is_outdated(table)
        if grows and last.number > 0 and lake.committed(table.name) == last.number:
            before = _version(lake, table)
            if lake.compact(table, small_files_max) != before:
                joined[table.name] = _files(lake, table)
    return joined


def vacuum(lake: Lake, tables: Mapping[str, Table], last: Run, hours: int = VACUUM_HOURS) -> list[str]:
    """Remove files that the last complete batch does not need, and what killed runs left; refused while an interrupted batch may need them."""
    stored = [table for table in tables.values() if table.is_stored]
    begun = [table.name for table in stored if _is_begun(lake, table, last)]
    if begun:
        raise BatchUnderWay(str(lake.path), f"{begun[0]} is past batch {last.number}, the last complete one")
    removed = []
    for table in stored:
        keep = [last.versions[table.name]] if table.name in last.versions else []
        removed += lake.vacuum(table, keep, hours)
    return removed


def _is_begun(lake: Lake, table: Table, last: Run) -> bool:
    """Whether a table has something of an incomplete batch: its rows, a rebuild before them, or the new table itself."""
    if lake.delta(table.name) is None:
        return False
    is_next = lake.committed(table.name) > last.number or lake.is_rebuilt_for(table, last.number + 1)
    return is_next or table.name not in last.versions


def set_aside(lake: Lake, shelf: Shelf) -> Path:
    """Rename a lake, and begin an empty one of its kind in its place with the same key; returns the path of the old one.

    A crash in the middle leaves no lake, or an empty one that will get a new key; the old one is whole.
    """
    aside = lake.path.with_name(f"{lake.path.name}.until-{shelf.last_run().number}")
    number = 1
    while aside.exists():
        number += 1
        aside = lake.path.with_name(f"{lake.path.name}.until-{shelf.last_run().number}.{number}")
    key = lake.private / KEY_FILE
    kept = key.read_bytes() if key.exists() else None
    lake.path.rename(aside)
    files.sync_directory(lake.path.parent)
    begun = Lake(lake.path)
    begun.create()
    if kind.is_own(Lake(aside)):
        kind.make_own(begun)
    if kept is not None:
        files.write_new(begun.private / KEY_FILE, kept)
    return aside


def _version(lake: Lake, table: Table) -> int:
    found = lake.delta(table.name)
    return -1 if found is None else found.version()


def _files(lake: Lake, table: Table) -> int:
    found = lake.delta(table.name)
    return 0 if found is None else len(found.file_uris())
