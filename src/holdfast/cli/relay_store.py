"""Where a relay keeps what it knows: the file in its data directory, or a database of PostgreSQL; and the way from one to the other."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json
from holdfast.relay import lock, moving, settings
from holdfast.relay.identity import DATABASE, MOVED, DatabaseMoved, Identity
from holdfast.relay.settings import Settings
from holdfast.store import address

Result = TypeVar("Result")

PASSWORD = "PGPASSWORD"  # noqa: S105 - the name of the variable in which PostgreSQL's library looks for it

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="The relay's data directory.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="A database of PostgreSQL, postgresql://…, in the place of DIR/relay.db."
    ),
]


def settings_of(
    data: Path, config: Path | None, host: str | None, port: int | None, store: str | None = None
) -> Settings:
    """The settings of a relay: from its file, from the environment, and from what was given."""
    default = data / settings.FILE_NAME
    try:
        loaded = settings.load(config or (default if default.exists() else None), os.environ)
    except settings.SettingsInvalid as invalid:
        raise Failure(ExitCode.USAGE, "settings_invalid", str(invalid)) from invalid
    options = {"host": host, "port": port, "store": None if store is None else given(store)}
    return msgspec.structs.replace(loaded, **{name: value for name, value in options.items() if value is not None})


def given(store: str) -> str:
    """A store that was given as an option; refused with a password in it, which everybody could see."""
    if not address.is_url(store):
        raise Failure(ExitCode.USAGE, "usage", f"--store takes postgresql://USER@HOST/DATABASE, not {store!r}")
    if address.password(store) is not None or address.has_key_password(store):
        message = (
            "everybody on this machine sees the options of a process: give the password in PGPASSWORD, in ~/.pgpass, "
            "or with the URL as HOLDFAST_RELAY_STORE or `store` in relay.toml; that of a TLS key in ~/.pg_service.conf"
        )
        raise Failure(ExitCode.USAGE, "password_shown", message)
    return store


def where(data: Path, chosen: Settings) -> str:
    """Where the relay of a data directory keeps what it knows. A password is left to the environment, for children too."""
    if chosen.store is None:
        if (data / MOVED).exists() and not (data / DATABASE).exists():
            raise DatabaseMoved(str(data / MOVED))
        return str(data / DATABASE)
    password = address.password(chosen.store)
    if password is not None:
        os.environ[PASSWORD] = password
    return address.shown(chosen.store)


def where_of(data: Path, store: str | None) -> str:
    """Like `where`, for a directory on which a relay may be running; `store` replaces its setting."""
    if store is None:
        check_there(data)
    return where(data, settings_of(data, None, None, None, store))


def check_there(data: Path) -> None:
    """Refuse a command that needs a relay's directory, if there is none."""
    if not data.is_dir():
        message = f"there is no relay's data at {data}. Correct --data; `holdfast relay run --data DIR` makes a relay."
        raise Failure(ExitCode.NOT_FOUND, "no_relay_data", message)


def migrate(
    data: Annotated[
        Path, typer.Option("--from", metavar="DIR", help="The data directory of a relay that does not run.")
    ],
    store: Annotated[str, typer.Option("--to", metavar="URL", help="An empty database of PostgreSQL, postgresql://….")],
    as_json: AsJson = False,
) -> None:
    """Move a relay's database from its file to PostgreSQL: everything or nothing, compared and checked before it counts.

    Afterwards run it with --store. The file stays, under another name. A move that was interrupted is simply repeated.
    """
    with _progress(quiet=as_json) as told:
        moved = _alone(lambda: moving.move(data, given(store), told))
    if as_json:
        print_json({"from": str(data), "to": store, **msgspec.to_builtins(moved)})
    else:
        console().print(
            f"✓ {store}: {sum(moved.rows.values())} rows, up to entry {moved.seq} of log {moved.log_id}, checked"
        )
        console().print(f"  The file is now {data / MOVED}. Run the relay with --store.")


def fork(
    data: Data,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Say that a database on a server was brought back to an earlier moment: it goes on under a new log id.

    To be run once after every restore of PostgreSQL, before a relay runs on it. Devices then offer again what it lacks.
    """
    place = where_of(data, store)
    if not address.is_url(place):
        raise Failure(
            ExitCode.USAGE, "usage", "`holdfast relay restore` does this for a file; this is for a database on a server"
        )
    pubkey = Identity.read(data).pubkey
    log_id, seq = _alone(lambda: moving.fork(place, pubkey))
    if as_json:
        print_json({"store": place, "log_id": log_id, "seq": seq})
    else:
        console().print(f"✓ {place}: goes on behind entry {seq - 1} as log {log_id}")


def _alone(work: Callable[[], Result]) -> Result:
    try:
        return work()
    except lock.RelayRunning as fault:
        raise Failure(ExitCode.UNAVAILABLE, type(fault).__name__, str(fault)) from fault
    except (moving.StoreOccupied, moving.MoveBroken) as fault:
        raise Failure(ExitCode.VIOLATION, type(fault).__name__, str(fault)) from fault


@contextmanager
def _progress(*, quiet: bool) -> Iterator[moving.Progress]:
    """A bar on stderr that says how far a move is, where somebody sees it."""
    with Progress(console=Console(stderr=True), disable=quiet or not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("moving", total=None)

        def told(table: str, done: int, total: int) -> None:
            bar.update(task, description=table, completed=done, total=total)

        yield told
