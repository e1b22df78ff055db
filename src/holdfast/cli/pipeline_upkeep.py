"""`holdfast pipeline backfill|compact|vacuum`: what keeps a lake in shape."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.at_lake import LakePath, explained, hidden, open_shelf, with_batch
from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json

if TYPE_CHECKING:
    from holdfast.pipeline.lake import Lake
    from holdfast.pipeline.outcome import Outcome
    from holdfast.pipeline.shelf import Shelf
    from holdfast.pipeline.table import Table


VACUUM_HOURS_MAX = 876_000
"""A hundred years: whoever wants to keep files for longer does not vacuum."""


def compact(lake: LakePath, as_json: AsJson = False) -> None:
    """Join the small files of every table. What was certified stays as it was; no Java is needed."""
    with explained():
        from holdfast.pipeline import upkeep

        shelf = open_shelf(lake)
        with shelf.lake.hold():
            joined = upkeep.compact(shelf.lake, shelf.tables, shelf.last_run(), small_files_max=1)
    if as_json:
        print_json({"files": joined})
        return
    for table, count in joined.items():
        console().print(f"✓ {table}: {count} files")
    if not joined:
        console().print("✓ nothing to join")


def vacuum(
    lake: LakePath,
    hours: Annotated[
        int, typer.Option(min=0, max=VACUUM_HOURS_MAX, help="Keep files that were needed within the last N hours.")
    ] = 24,
    as_json: AsJson = False,
) -> None:
    """Remove files that the last complete batch does not need, and what killed runs left. No Java is needed."""
    with explained():
        from holdfast.pipeline import upkeep

        shelf = open_shelf(lake)
        with shelf.lake.hold():
            removed = upkeep.vacuum(shelf.lake, shelf.tables, shelf.last_run(), hours)
    if as_json:
        print_json({"removed": len(removed)})
    else:
        console().print(f"✓ {len(removed)} files removed")


def backfill(
    lake: LakePath,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLES", help="Tables to compute anew, and what is made of them.")
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Set the lake aside; the next run reads all histories from their beginning.")
    ] = False,
    memory_mb: Annotated[int, typer.Option("--memory-mb", min=512, help="How much memory Spark gets.")] = 2048,
    as_json: AsJson = False,
) -> None:
    """Compute tables anew from all that the lake has read: those named, and those whose columns have changed."""
    if anew and tables:
        raise Failure(ExitCode.USAGE, "usage", "--anew begins all tables again: name none")
    with explained():
        shelf = open_shelf(lake)
        if anew:
            _set_aside(shelf, as_json=as_json)
            return
        computed = _computed(with_batch(shelf))
        unknown = [name for name in tables or () if name not in computed or not computed[name].is_stored]
        if unknown:
            message = f"there is no table {unknown[0]} that could be computed; `pipeline show` lists all"
            raise Failure(ExitCode.NOT_FOUND, "table_unknown", message)
        with shelf.lake.hold():
            outcome = _backfilled(shelf, computed, tables or [], memory_mb)
    if as_json:
        print_json({"number": outcome.number, "violations": outcome.violations})
    else:
        console().print(f"✓ batch {outcome.number}: computed anew from what the lake has")
    if outcome.violations:
        raise typer.Exit(ExitCode.VIOLATION)


def _set_aside(shelf: "Shelf", *, as_json: bool) -> None:
    from holdfast.pipeline import upkeep

    with shelf.lake.hold():
        aside: Path = upkeep.set_aside(shelf.lake, shelf)
    if as_json:
        print_json({"aside": str(aside)})
    else:
        console().print(f"✓ the lake is {aside} now; the next run begins it again")


def _computed(shelf: "Shelf") -> "dict[str, Table]":
    """The tables of a lake with the functions that compute them."""
    from holdfast.pipeline.kind import is_own
    from holdfast.pipeline.table import load, load_search

    return load_search() if is_own(shelf.lake) else load()


def _backfilled(shelf: "Shelf", computed: "dict[str, Table]", tables: list[str], memory_mb: int) -> "Outcome":
    from holdfast.pipeline import session
    from holdfast.pipeline.runner import Runner

    rows = sum(mark.seq for mark in shelf.last_run().marks.values())
    settings = session.SessionSettings(memory_mb=memory_mb, rows=rows, more=_hidden_if_own(shelf.lake))
    return Runner(lambda: session.open_session(settings, shelf.lake.private), shelf.lake, computed).backfill(tables)


def _hidden_if_own(lake: "Lake") -> dict[str, str]:
    """Settings that hide Spark's temporary rows of an owner's index, which are messages in plain text; a relay's lake has none."""
    from holdfast.pipeline.kind import is_own

    if not is_own(lake):
        return {}
    lake.check_private()
    return hidden(lake)
