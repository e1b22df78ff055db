"""`holdfast daemon`: run the program that sends and receives for a home, or have it run in the background."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
import typer

from holdfast.cli import ci, daemon_status
from holdfast.cli import session as sessions
from holdfast.cli.at_home import AtHome, find_home
from holdfast.cli.output import AsJson, ExitCode, Failure, console, plain, print_json, print_table, show_time
from holdfast.device import holder, local_token
from holdfast.device.home import Home, InUse
from holdfast.device.ipc_link import NoDaemon
from holdfast.store.world import wall_clock

__all__ = ("AtHome", "Port", "app", "find_home")  # what other commands of a home take from here

LOG_NAME = "daemon.log"
STOP_TIMEOUT_S = 20.0  # more than the daemon gives to what is under way
FOLLOW_POLL_S = 0.5
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

app = typer.Typer(help="Run the program that sends and receives for this home.", no_args_is_help=True)

Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Serve on this port of 127.0.0.1, too, with the token in local-token."),
]


@app.command()
def run(
    home: AtHome = None,
    port: Port = None,
    persistent: ci.Persistent = False,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="For one job: joins by HOLDFAST_INVITE, and leaves nothing behind.")
    ] = False,
    ttl: Annotated[
        str | None, typer.Option(metavar="TIME", help="End an ephemeral one after that: 90s, 30m, 2h.")
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Option(help="In the place of the setting.")
    ] = None,
    log_file: Annotated[
        Path | None, typer.Option(hidden=True, help="What stderr is: it is put aside as it grows.")
    ] = None,
) -> None:
    """Run the daemon until it is told to stop. The first line on stdout names its socket; the log, on stderr, is JSON."""
    if ephemeral or _is_for_one_job(persistent):
        from holdfast.cli.ephemeral import serve as serve_one_job

        serve_one_job(os.environ, port=port, log_level=log_level, ttl_s=None if ttl is None else _seconds(ttl))
        return
    if ttl is not None:
        raise Failure(ExitCode.USAGE, "usage", "--ttl is for --ephemeral.")
    ci.refuse(os.environ, persistent=persistent)
    found = find_home(home)
    with sessions.failures(found):
        sessions.check_exists(found)
        # Servers are large, and every other command starts without them.
        from holdfast.cli.daemon_process import Options, serve

        serve(found, Options(port=port, log_level=log_level, log_file=log_file))


@app.command()
def up(home: AtHome = None, port: Port = None, persistent: ci.Persistent = False, as_json: AsJson = False) -> None:
    """Start the daemon in the background. It goes on when this terminal is closed; `daemon logs` shows what it says."""
    ci.refuse(os.environ, persistent=persistent)
    found = find_home(home)
    with sessions.failures(found):
        sessions.check_exists(found)
    started = _start(found, port)
    if as_json:
        print_json(started)
    else:
        console().print(f"the daemon of {found.path} is up: {started['socket']}")


@app.command()
def down(home: AtHome = None, as_json: AsJson = False) -> None:
    """Stop the daemon, after what it has under way. Nothing is lost by that: the rest waits for its next start."""
    found = find_home(home)
    with sessions.failures(found):
        sessions.check_exists(found)
    running = None if _is_free(found, 0.0) else holder.find(found)  # the lock decides; a number may be another's by now
    if running is None:
        raise Failure(ExitCode.UNAVAILABLE, "no_daemon", f"no daemon runs in {found.path}.")
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(running.pid, signal.SIGTERM)
    if not _is_free(found, STOP_TIMEOUT_S):
        message = (
            f"process {running.pid} has not ended within {STOP_TIMEOUT_S:g} s; look at `holdfast daemon logs`. "
            f"If it hangs, end it with `kill -9 {running.pid}`: what was accepted is on disk, and nothing is lost."
        )
        raise Failure(ExitCode.UNAVAILABLE, "still_running", message)
    if as_json:
        print_json({"stopped": running.pid})
    else:
        console().print(f"the daemon of {found.path} has stopped")


@app.command()
def status(home: AtHome = None, as_json: AsJson = False) -> None:
    """How the daemon is. Exit code 5 if none runs."""
    from holdfast.device.client import Client

    found = find_home(home)
    with sessions.failures(found), Client(home=found.path) as client:
        health = client.health()
    if as_json:
        print_json(msgspec.to_builtins(health))
        return
    for name, text in daemon_status.lines(health, wall_clock()):
        console().print(f"{name:<11}{plain(text)}")


@app.command()
def reload(home: AtHome = None, as_json: AsJson = False) -> None:
    """Have the daemon read daemon.toml anew, without losing its connection. Settings that are not good change nothing."""
    from holdfast.device.client import Client

    found = find_home(home)
    with sessions.failures(found), Client(home=found.path) as client:
        changed = client.reload().changed
    if as_json:
        print_json({"changed": changed})
    else:
        console().print(f"changed: {', '.join(changed)}" if changed else "nothing has changed")


@app.command("rotate-token")
def rotate_token(home: AtHome = None, as_json: AsJson = False) -> None:
    """Make another token for the loopback port; a daemon that runs takes the old one for a minute more."""
    from holdfast.device.client import Client

    found = find_home(home)
    until: int | None = None
    with sessions.failures(found):
        sessions.check_exists(found)
        try:
            with Client(home=found.path) as client:
                until = client.rotate_token().old_until
        except NoDaemon:
            with found.entered():
                local_token.renew(found.path, os.urandom)
    if as_json:
        print_json({"old_until": until})
    else:
        console().print(
            f"{found.path / local_token.FILE_NAME} has a new token"
            + ("" if until is None else f"; the old one is taken until {show_time(until)}")
        )


@app.command()
def logs(
    home: AtHome = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
) -> None:
    """What a daemon that was started with `up` has logged: one JSON object a line."""
    path = find_home(home).path / LOG_NAME
    try:
        with path.open("rb") as file:
            for line in file.read().splitlines(keepends=True)[-lines:] if lines else ():
                sys.stdout.buffer.write(line)
            sys.stdout.flush()
            if follow:
                _follow(file, path)
    except FileNotFoundError:
        message = f"there is no {path}; only a daemon that `holdfast daemon up` started writes it."
        raise Failure(ExitCode.NOT_FOUND, "no_log", message) from None


def _follow(file: BinaryIO, path: Path) -> None:
    """Write new lines of the log without end, across its rotation."""
    while True:
        following = _opened(path)
        is_aside = following is not None and not os.path.sameopenfile(following.fileno(), file.fileno())
        sys.stdout.buffer.write(file.read())
        sys.stdout.flush()
        if following is not None:
            with following:
                if is_aside:
                    os.dup2(following.fileno(), file.fileno())
        if is_aside:
            file.seek(0)
        else:
            time.sleep(FOLLOW_POLL_S)


def _opened(path: Path) -> BinaryIO | None:
    """The open file; None while a rotation has moved the old log and not begun the new one."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _is_for_one_job(persistent: bool) -> bool:
    """Whether this is a job that has an invitation and does not say that it means to stay."""
    return not persistent and ci.variable_in(os.environ) is not None and "HOLDFAST_INVITE" in os.environ


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)(s|m|h|d)", text)
    if found is None:
        raise Failure(ExitCode.USAGE, "usage", f"--ttl {text} is no time; write 90s, 30m, 2h or 1d.")
    return int(found[1]) * _UNITS_S[found[2]]


def _is_free(home: Home, wait_s: float) -> bool:
    """Whether nobody works in a home, at the latest after this time."""
    try:
        with home.entered(wait_s=wait_s):
            return True
    except InUse:
        return False


def _start(home: Home, port: int | None) -> dict[str, Any]:
    """A daemon of its own session; returns when it answers."""
    log = home.path / LOG_NAME
    options = [] if port is None else ["--port", str(port)]
    command = [
        sys.executable,
        "-P",
        "-m",
        "holdfast.cli",
        "daemon",
        "run",
        "--home",
        str(home.path),
        "--persistent",
        "--log-file",
        str(log),
        *options,
    ]
    before = log.stat().st_size if log.exists() else 0
    descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(  # noqa: S603 - ourselves
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=descriptor, start_new_session=True
        )
    finally:
        os.close(descriptor)
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    with process.stdout as said:
        first = said.readline()
    if first:
        started: dict[str, Any] = msgspec.json.decode(first)
        return started
    raise _did_not_start(process.wait(), log, before)


def _did_not_start(code: int, log: Path, before: int) -> Failure:
    """Why, in its own words: what it wrote last, which a damaged file makes several lines."""
    with log.open("rb") as file:
        file.seek(before)
        said = file.read().decode(errors="replace").strip()
    _, is_told, reason = f"\n{said}".rpartition("\nholdfast: ")
    if not is_told:
        reason = (said.splitlines() or [f"it ended with code {code} and said nothing; `holdfast daemon run` says why"])[
            -1
        ]
    return Failure(ExitCode(code) if code in set(ExitCode) and code else ExitCode.ERROR, "daemon_failed", reason)


@app.command()
def recover(
    home: AtHome = None,
    force: Annotated[bool, typer.Option("--force", help="Although nothing is found to be damaged.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a new database of what can be read of a damaged one; the relay then fills the inbox with what it still has.

    The damaged file stays beside it. The home goes on as a new sender, so nothing is ever named twice.
    """
    from holdfast.device import recover as recovery

    found = find_home(home)
    with sessions.failures(found):
        sessions.check_exists(found)
        try:
            with found.entered(wait_s=0.0):
                done = recovery.recover(found, wall_clock, os.urandom, force=force)
        except recovery.NothingDamaged:
            message = f"nothing is damaged in {found.database}. --force recovers it all the same."
            raise Failure(ExitCode.VIOLATION, "nothing_damaged", message) from None
    if as_json:
        print_json(msgspec.to_builtins(done))
        return
    rows = [(one.table, str(one.rows), "" if one.is_whole else "a part is lost") for one in done.tables]
    print_table(("table", "rows", ""), rows, right=("rows",))
    if not done.history_is_whole:
        console().print(
            "The history begins anew, because its entries no longer fit together or tell of rows that are lost."
        )
    console().print(f"The damaged file is {done.damaged}; the next `holdfast daemon up` fills the inbox again.")
    for finding in done.findings:
        console().print(f"! {finding}")
