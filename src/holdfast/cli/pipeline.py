"""`holdfast pipeline run|report|show|sql|verify`: the histories of a relay and its devices, in a lake, and what it proves."""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json, print_table, show_time
from holdfast.store import files

if TYPE_CHECKING:
    from holdfast.pipeline.lake import Lake
    from holdfast.pipeline.pages import Place
    from holdfast.pipeline.runner import Outcome, Runner
    from holdfast.pipeline.shelf import AsOf, Shelf

app = typer.Typer(help="Read all histories into a lake, and prove that nothing was lost.", no_args_is_help=True)

ROWS_SHOWN = 20
CELL_CHARACTERS_MAX = 60
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_UNITS_S = {None: 1, "s": 1, "m": 60, "h": 3600}

LakePath = Annotated[Path, typer.Option("--lake", metavar="DIR", help="The lake's directory.")]
AsOfText = Annotated[
    str | None, typer.Option("--as-of", metavar="BATCH|TIME", help="As the lake was after this batch, or at this time.")
]


@app.command()
def run(
    relay: Annotated[str, typer.Option("--relay", metavar="URL", help="The relay whose history is read.")],
    lake: LakePath,
    device: Annotated[
        list[str] | None, typer.Option("--device", metavar="SOCKET", help="A daemon's socket; may be given often.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Read what there is, then stop. The default.")] = False,
    every: Annotated[
        str | None, typer.Option("--every", metavar="60s", help="Go on for ever, a batch each time.")
    ] = None,
    full: Annotated[
        bool | None, typer.Option("--full/--touched", help="Compare all of the relay's state, or what a batch touched.")
    ] = None,
    master: Annotated[str, typer.Option("--master", metavar="M", help="Where Spark runs.")] = "local[*]",
    remote: Annotated[str | None, typer.Option("--remote", metavar="sc://…", help="A Spark Connect server.")] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="The export token; else HOLDFAST_TOKEN.")
    ] = None,
    memory_mb: Annotated[int, typer.Option("--memory-mb", min=512, help="How much memory Spark gets.")] = 2048,
    patience_s: Annotated[float, typer.Option("--patience", help="Seconds to wait for a relay that is away.")] = 60.0,
    on_violation: Annotated[
        str | None, typer.Option("--on-violation", metavar="COMMAND", help="Run this when a batch finds a violation.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring the lake up to date, check every rule, and sign a certificate. Exit code 4 if a rule is broken."""
    if once and every is not None:
        raise Failure(ExitCode.USAGE, "usage", "--once and --every exclude each other")
    with _explained():
        from holdfast.pipeline import plan, session, watch
        from holdfast.pipeline.lake import Lake

        places = [
            _place(relay, token_file, patience_s),
            *(_place(_socket(one), None, patience_s) for one in device or []),
        ]
        opened = Lake(lake)
        opened.create()
        with opened.hold():
            sources = plan.find_sources(places[0], places[1:])
            rows = sum(source.head.seq for source in sources) if every is None else None
            settings = session.SessionSettings(master=master, remote=remote, memory_mb=memory_mb, rows=rows)
            with _progress(as_json) as tell:
                tell("starting Spark")
                runner = _runner(opened, settings, tell)
                if every is None:
                    outcomes = watch.once(runner, sources, full=full is not False)
                else:
                    outcomes = watch.every(runner, sources, _seconds(every), watch.World())
                violations = _follow(outcomes, opened, places[0], on_violation, as_json=as_json)
    if violations:
        raise typer.Exit(ExitCode.VIOLATION)


def _runner(lake: "Lake", settings: Any, tell: Callable[[str], None]) -> "Runner":
    from holdfast.pipeline import session
    from holdfast.pipeline.runner import Runner
    from holdfast.pipeline.source import register
    from holdfast.pipeline.table import load

    spark = session.open_session(settings, lake.private)
    register(spark)
    return Runner(spark, lake, load(), tell=tell)


def _follow(
    outcomes: "Iterator[Outcome]", lake: "Lake", relay: "Place", on_violation: str | None, *, as_json: bool
) -> int:
    """Say what each batch brought, and let the relay know how far we are; how many violations the lake has."""
    from holdfast.pipeline import checkpoint, metrics

    violations, began_at = 0, time.monotonic()
    for outcome in outcomes:
        seconds = time.monotonic() - began_at
        metrics.write(lake, outcome, seconds)
        _say(outcome, seconds, checkpoint.move(relay, outcome.marks), as_json=as_json)
        if outcome.violations > violations and on_violation:
            subprocess.run(shlex.split(on_violation), check=False)  # noqa: S603 - the user's own command
        violations, began_at = outcome.violations, time.monotonic()
    return violations


def _say(outcome: "Outcome", seconds: float, problem: str | None, *, as_json: bool) -> None:
    if as_json:
        told = {name: getattr(outcome, name) for name in outcome.__dataclass_fields__ if name != "marks"}
        print_json({**told, "seconds": round(seconds, 3), "problem": problem})
        sys.stdout.flush()
        return
    verdict = f"✗ {outcome.violations} violations" if outcome.violations else "✓ no violation"
    line = f"batch {outcome.number}: {outcome.entries:,} entries, {outcome.balance['open']:,} open, {verdict} ({seconds:.1f} s)"
    console().print(line + (f"; {problem}" if problem else ""))


@app.command()
def report(
    lake: LakePath,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to write the page.")] = None,
    as_of: AsOfText = None,
    as_json: AsJson = False,
) -> None:
    """One page with the balance, the findings and the times to delivery; it needs nothing but itself."""
    with _explained():
        from holdfast.pipeline import report as reports

        told = reports.gather(_shelf(lake, as_of))
        if as_json:
            print_json(_plain(told))
            return
        target = out or lake / "report.html"
        files.replace(target.absolute(), reports.page(told, show_time).encode())
        console().print(f"✓ {target}")


@app.command()
def show(
    lake: LakePath,
    table: Annotated[str | None, typer.Argument(help="A table; without one, all of them are listed.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many rows.")] = ROWS_SHOWN,
    as_of: AsOfText = None,
    as_json: AsJson = False,
) -> None:
    """The tables of the lake, or the rows of one."""
    with _explained():
        shelf = _shelf(lake, as_of)
        if table is None:
            _list_tables(shelf, as_json=as_json)
            return
        if table not in shelf.tables or not shelf.tables[table].is_stored:
            raise Failure(ExitCode.NOT_FOUND, "table_unknown", f"there is no table {table}; `pipeline show` lists them")
        names = shelf.tables[table].schema.fieldNames()
        rows = shelf.query(table, shelf.last_run().versions.get(table), f"SELECT * FROM {{rows}} LIMIT {limit}")  # noqa: S608 - a number
    _print_rows(names, rows, as_json=as_json)


def _list_tables(shelf: "Shelf", *, as_json: bool) -> None:
    versions = shelf.last_run().versions
    tables = [table for name, table in sorted(shelf.tables.items()) if table.is_stored]
    rows = {table.name: shelf.rows(table.name, versions.get(table.name)) for table in tables}
    if as_json:
        told = [
            {"table": one.name, "rows": rows[one.name], "version": versions.get(one.name), "meaning": one.meaning}
            for one in tables
        ]
        print_json({"tables": told})
    else:
        print_table(
            ("table", "rows", "meaning"),
            [(one.name, f"{rows[one.name]:,}", one.meaning) for one in tables],
            right=("rows",),
        )


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A question in DuckDB's SQL.")],
    lake: LakePath,
    as_of: AsOfText = None,
    as_json: AsJson = False,
) -> None:
    """Ask the lake; every table is there under its name, as the last complete batch left it."""
    with _explained():
        shelf = _shelf(lake, as_of)
        names, rows = shelf.ask(query)
    _print_rows(names, rows, as_json=as_json)


@app.command()
def verify(
    lake: LakePath,
    pubkey: Annotated[
        str | None, typer.Option(help="The key that must have signed; else the first certificate's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read every row again and compare it with the certificates. Exit code 4 if anything is not as certified."""
    with _explained():
        from holdfast.pipeline.verify import verify as check

        shelf = _shelf(lake)
        wrong = check(shelf, pubkey)
        last = shelf.last_run().number
    if as_json:
        print_json({"batch": last, "ok": not wrong, "wrong": wrong})
    for one in [] if as_json else wrong:
        console().print(f"✗ {one}")
    if wrong:
        raise typer.Exit(ExitCode.VIOLATION)
    if not as_json:
        console().print(f"✓ every row is as certified, up to batch {last}")


def _shelf(path: Path, as_of: str | None = None) -> "Shelf":
    from holdfast.pipeline.lake import Lake
    from holdfast.pipeline.shelf import Shelf
    from holdfast.pipeline.table import load

    lake = Lake(path)
    lake.check_there()
    return Shelf(lake, load(), None if as_of is None else then(as_of))


def then(text: str) -> "AsOf":
    """A batch's number, or a time in ISO 8601; without a zone it is UTC."""
    from holdfast.pipeline.shelf import AsOf

    if text.isdecimal():
        return AsOf(number=int(text))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        message = f"--as-of is the number of a batch or a time such as 2026-05-17T12:00:00Z, not {text}"
        raise Failure(ExitCode.USAGE, "usage", message) from None
    return AsOf(at=round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000))


def _print_rows(names: list[str], rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"columns": names, "rows": _plain(rows)})
    else:
        print_table(names, [[_cell(row[name]) for name in names] for row in rows])


def _cell(value: Any) -> str:
    text = "" if value is None else str(_plain(value))
    return text if len(text) <= CELL_CHARACTERS_MAX else text[: CELL_CHARACTERS_MAX - 1] + "…"


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what a library lacks, or a source says, into a failure with an exit code."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"the pipeline needs {error.name}: install holdfast[pipeline], or run `make pipeline`"
        raise Failure(ExitCode.ERROR, "pipeline_missing", message) from error
    except Exception as error:
        raise _failure(error) from error


def _failure(error: Exception) -> Exception:
    from holdfast.pipeline import failures
    from holdfast.pipeline.lake import LakeBusy

    if isinstance(error, LakeBusy):
        return Failure(ExitCode.UNAVAILABLE, type(error).__name__, str(error))
    told = failures.told(error)
    if told is None:
        return error
    is_away, kind, message = told
    return Failure(ExitCode.UNAVAILABLE if is_away else ExitCode.ERROR, kind, message)


def _place(url: str, token_file: Path | None, patience_s: float) -> "Place":
    from holdfast.pipeline.pages import Place
    from holdfast.pipeline.source import token

    token_path = None if token_file is None else str(token_file.absolute())
    is_local = url.startswith("unix:")
    return Place(url, None if is_local else token(token_path), patience_s, token_path)


def _socket(text: str) -> str:
    return text if text.startswith(("unix:", "http:", "https:")) else f"unix:{Path(text).absolute()}"


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if found is None or float(found[1]) <= 0:
        raise Failure(ExitCode.USAGE, "usage", f"--every is a time such as 60s, 5m or 1h, not {text}")
    return float(found[1]) * _UNITS_S[found[2]]


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[str], None]]:
    """What is being done, on a terminal; nothing anywhere else."""
    if as_json or not sys.stdout.isatty():
        yield lambda what: None
        return
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console(), transient=True
    ) as shown:
        task = shown.add_task("", total=None)
        yield lambda what: shown.update(task, description=what)
