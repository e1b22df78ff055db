"""`holdfast pipeline …`: the histories of a relay and its devices, in a lake, and what it proves."""

import math
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from holdfast.cli import pipeline_lake, pipeline_upkeep
from holdfast.cli.at_lake import LakePath, explained, hidden
from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.pipeline.lake import Lake
    from holdfast.pipeline.outcome import Outcome
    from holdfast.pipeline.pages import Place
    from holdfast.pipeline.plan import Source
    from holdfast.pipeline.runner import Runner
    from holdfast.pipeline.session import SessionSettings
    from holdfast.pipeline.table import Table

app = typer.Typer(help="Read all histories into a lake, and prove that nothing was lost.", no_args_is_help=True)

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_STDERR = 2
_UNITS_S = {None: 1, "s": 1, "m": 60, "h": 3600}


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
        str | None,
        typer.Option("--on-violation", metavar="COMMAND", help="Run this when a batch finds a new violation."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring the lake up to date, check every rule, and sign a certificate. Exit code 4 if a rule is broken."""
    if once and every is not None:
        raise Failure(ExitCode.USAGE, "usage", "--once and --every exclude each other")
    every_s = None if every is None else _seconds(every)
    alarm = None if on_violation is None else _command(on_violation)
    with explained():
        from holdfast.pipeline import kind, plan, session
        from holdfast.pipeline.lake import Lake
        from holdfast.pipeline.table import load

        places = [
            _place(relay, token_file, patience_s),
            *(_place(_socket(one), None, patience_s) for one in device or []),
        ]
        opened, is_full = Lake(lake), full is not False
        opened.check_name()
        kind.check_relays(opened)
        with _progress(as_json) as tell:
            tell(f"waiting for {relay}, {patience_s:g} s at most")
            with _held(opened, plan.find_sources(places[0], places[1:])) as sources:
                settings = session.SessionSettings(master=master, remote=remote, memory_mb=memory_mb)
                runner = _runner(opened, settings, load(), tell, None if every_s else (sources, is_full))
                outcomes = _outcomes(runner, sources, every_s, full=is_full)
                violations = _follow(outcomes, opened, sources[0], alarm, as_json=as_json)
    if violations:
        raise typer.Exit(ExitCode.VIOLATION)


def index(
    lake: LakePath,
    device: Annotated[
        list[str], typer.Option("--device", metavar="SOCKET", help="Your daemon's socket; may be given often.")
    ],
    every: Annotated[
        str | None, typer.Option("--every", metavar="60s", help="Go on for ever, a batch each time.")
    ] = None,
    memory_mb: Annotated[int, typer.Option("--memory-mb", min=512, help="How much memory Spark gets.")] = 2048,
    patience_s: Annotated[float, typer.Option("--patience", help="Seconds to wait for a daemon that is away.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Bring an index of your own messages up to date, for `search`. They lie there in the clear, for you alone."""
    every_s = None if every is None else _seconds(every)
    with explained():
        from holdfast.pipeline import kind, plan, session
        from holdfast.pipeline.lake import Lake
        from holdfast.pipeline.table import load_search

        opened = Lake(lake)
        opened.check_name()
        places = [_place(_socket(one), None, patience_s) for one in device]
        with _progress(as_json) as tell:
            tell(f"waiting for {', '.join(device)}, {patience_s:g} s at most")
            with _held(opened, plan.find_devices(places)) as sources:
                opened.check_private()
                kind.make_own(opened)
                settings = session.SessionSettings(memory_mb=memory_mb, more=hidden(opened))
                runner = _runner(opened, settings, load_search(), tell, None if every_s else (sources, False))
                outcomes = _outcomes(runner, sources, every_s, full=False)
                violations = _follow(outcomes, opened, None, None, as_json=as_json)
    if violations:
        raise typer.Exit(ExitCode.VIOLATION)


@contextmanager
def _held(lake: "Lake", found: "list[Source]") -> "Iterator[list[Source]]":
    """Make and lock a lake, and yield its sources with new heads. The sources have answered before, so no lake is made for nothing."""
    from holdfast.pipeline import plan

    lake.create()
    with lake.hold():
        yield plan.renewed(found)  # another run may have read past the old heads, and the logs would seem cut off


def _runner(
    lake: "Lake",
    settings: "SessionSettings",
    tables: "dict[str, Table]",
    tell: Callable[[str], None],
    once: "tuple[list[Source], bool] | None",
) -> "Runner":
    """A runner whose first batch starts Spark; for a run that ends by itself, `once` has what it reads, and Spark is set up for that many rows."""
    from holdfast.pipeline import session
    from holdfast.pipeline.runner import Runner

    def open_spark() -> "SparkSession":
        tell("starting Spark")
        rows = None if once is None else runner.rows(once[0], full=once[1])
        return session.open_session(replace(settings, rows=rows), lake.private)

    runner = Runner(open_spark, lake, tables, tell=tell)
    return runner


def _outcomes(runner: "Runner", sources: "list[Source]", every_s: float | None, *, full: bool) -> "Iterator[Outcome]":
    """Run batches until everything is read, or for ever; first move the checkpoints that an earlier run could not move."""
    from holdfast.pipeline import checkpoint, watch
    from holdfast.pipeline.plan import Mark

    kept = runner.kept(sources)
    for source in sources:  # to 0 if nothing is kept yet: from then on the relay waits for this reader
        nothing = Mark(source.origin, source.head.log_id, 0, None)
        checkpoint.repeat(source.place, source.acknowledged, kept.get(source.origin, nothing))
    if every_s is None:
        return watch.once(runner, sources, full=full)
    return watch.every(runner, sources, every_s, watch.World())


def _follow(
    outcomes: "Iterator[Outcome]", lake: "Lake", relay: "Source | None", alarm: list[str] | None, *, as_json: bool
) -> int:
    """Print each outcome, write the metrics and move the relay's checkpoint; returns how many violations the lake has."""
    from holdfast.pipeline import metrics

    violations, began_at = 0, time.monotonic()
    for outcome in outcomes:
        seconds = time.monotonic() - began_at
        metrics.write(lake, outcome, seconds)
        problem = None if relay is None else _told(relay, outcome)
        _say(outcome, seconds, problem, as_json=as_json)
        if outcome.new_violations and alarm:
            # Standard output is for JSON, if a program reads it.
            subprocess.run(alarm, check=False, stdout=_STDERR if as_json else None)  # noqa: S603 - the user's own command
        violations, began_at = outcome.violations, time.monotonic()
    return violations


def _told(relay: "Source", outcome: "Outcome") -> str | None:
    """Move the relay's checkpoint; returns why it could not be moved, or not as far as the lake has read."""
    from holdfast.pipeline import checkpoint

    mark, told = outcome.kept.get(relay.origin), relay.acknowledged
    is_less = mark is not None and told is not None and told.log_id == mark.log_id and mark.seq <= told.seq
    problem = None if is_less and outcome.in_doubt else checkpoint.move(relay.place, mark)
    if problem is None and relay.origin in outcome.in_doubt:
        return (
            f"the relay was not told that its entries after {outcome.in_doubt[relay.origin]} are kept: some are missing in the "
            "lake, or are not as they were"
        )
    return problem


def _say(outcome: "Outcome", seconds: float, problem: str | None, *, as_json: bool) -> None:
    if as_json:
        told = {name: getattr(outcome, name) for name in outcome.__dataclass_fields__ if name != "kept"}
        print_json({**told, "seconds": round(seconds, 3), "problem": problem})
        sys.stdout.flush()
        return
    verdict = f"✗ {outcome.violations} violations" if outcome.violations else "✓ no violation"
    verdict += ", still to be compared" if outcome.uncompared else ""
    what = (
        f"batch {outcome.number}: {outcome.entries:,} entries"
        if outcome.is_new
        else f"nothing new since batch {outcome.number}"
    )
    line = f"{what}, {outcome.balance['open']:,} open, {verdict} ({seconds:.1f} s)"
    console().print(line + (f"; {problem}" if problem else ""))


def _place(url: str, token_file: Path | None, patience_s: float) -> "Place":
    from holdfast.pipeline.pages import Place, check_address
    from holdfast.pipeline.source import token

    check_address(url)
    if not 0 <= patience_s < math.inf:
        raise Failure(ExitCode.USAGE, "usage", f"--patience is a number of seconds, not {patience_s}")
    token_path = None if token_file is None else str(token_file.absolute())
    is_local = url.startswith("unix:")
    return Place(url, None if is_local else token(token_path), patience_s, token_path)


def _socket(text: str) -> str:
    return text if text.startswith(("unix:", "http:", "https:")) else f"unix:{Path(text).absolute()}"


def _command(text: str) -> list[str]:
    """The words of a command that can be run; any other is refused before there is a violation to tell."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Failure(ExitCode.USAGE, "usage", f"--on-violation is a command, and {text!r} is none: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise Failure(ExitCode.USAGE, "usage", f"--on-violation is a command, and no program can be run for {text!r}")
    return words


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    if found is None or float(found[1]) <= 0:
        raise Failure(ExitCode.USAGE, "usage", f"--every is a time such as 60s, 5m or 1h, not {text}")
    return float(found[1]) * _UNITS_S[found[2]]


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows on a terminal what is being done; elsewhere it shows nothing."""
    if as_json or not sys.stdout.isatty():
        yield lambda what: None
        return
    what = TextColumn("{task.description}", markup=False)  # an address may have brackets
    with Progress(SpinnerColumn(), what, TimeElapsedColumn(), console=console(), transient=True) as shown:
        task = shown.add_task("", total=None)
        yield lambda what: shown.update(task, description=what)


for command in (
    run,
    index,
    pipeline_lake.report,
    pipeline_lake.show,
    pipeline_lake.search,
    pipeline_lake.sql,
    pipeline_lake.trace,
    pipeline_lake.verify,
    pipeline_upkeep.backfill,
    pipeline_upkeep.compact,
    pipeline_upkeep.vacuum,
):
    app.command()(command)
