"""`holdfast relay token|stats|backup|restore`: what an operator does with a relay's data directory, beside the relay."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json, print_table, show_time
from holdfast.cli.relay_store import Data, Store, check_there, where_of
from holdfast.protocol.refusal import Refused
from holdfast.protocol.schedule import DAY
from holdfast.protocol.tags import IDENTIFIER
from holdfast.relay import copy, statistics
from holdfast.relay import token as tokens
from holdfast.relay.identity import Identity
from holdfast.relay.lock import RelayRunning
from holdfast.store import faults
from holdfast.store.address import is_url
from holdfast.store.world import wall_clock

DAYS = 30
DAYS_MAX = 366
CONSUMER = "pipeline"

Result = TypeVar("Result")


def token(
    data: Data,
    consumer: Annotated[str, typer.Option(help="Whose checkpoint the token may move.")] = CONSUMER,
    days: Annotated[int, typer.Option(min=1, max=DAYS_MAX, help="For how long it is good.")] = DAYS,
    as_json: AsJson = False,
) -> None:
    """Print a token that opens the export to one consumer until it expires. It cannot be called back before.

    Hand it over in a file that only its user can read, or in the environment: everybody sees the options of a process.
    """
    try:
        IDENTIFIER.check(consumer, "consumer")
    except Refused as refused:
        raise Failure(ExitCode.USAGE, "usage", refused.detail) from refused
    check_there(data)
    expires_at = wall_clock() + days * DAY
    text = tokens.mint(Identity.read(data).secret, consumer, expires_at, os.urandom(32))
    if as_json:
        print_json({"token": text, "consumer": consumer, "expires_at": expires_at})
    else:
        typer.echo(text)  # as it is: a terminal's width must not break it in two


def stats(data: Data, store: Store = None, as_json: AsJson = False) -> None:
    """What a relay holds: meshes, members, messages, what waits and for how long."""
    found = statistics.read(where_of(data, store), wall_clock())
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        print_table(("what", "value"), _told(found))


def backup(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The directory to make.")],
    data: Data,
    as_json: AsJson = False,
) -> None:
    """Copy a relay into a new directory, while it runs or not, and check the copy. It has the secret keys, too."""
    if is_url(where_of(data, None)):
        message = "the relay of this directory keeps everything in PostgreSQL, which has its own means for that: see Operations, Backup"
        raise Failure(ExitCode.USAGE, "store_elsewhere", message)
    note = _copied(lambda: copy.backup(data, target))
    if as_json:
        print_json({"backup": str(target), **msgspec.to_builtins(note)})
    else:
        console().print(f"✓ {target}: everything up to entry {note.seq} of log {note.log_id}, checked")
        console().print("  It holds the relay's secret keys: keep it as you keep those.")


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="The directory that `backup` made.")],
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Where the relay is to be; must have none.")],
    as_json: AsJson = False,
) -> None:
    """Make a relay of a backup, under a new log id. Devices then offer again what the backup lacks."""
    if not source.is_dir():
        raise Failure(ExitCode.NOT_FOUND, "not_found", f"there is no backup at {source}. Correct the path.")
    restored = _copied(lambda: copy.restore(source, data))
    if as_json:
        print_json({"data": str(data), **msgspec.to_builtins(restored)})
    else:
        console().print(f"✓ {data}: entries up to {restored.fork_seq} of log {restored.old_log_id}")
        console().print(f"  It goes on as log {restored.log_id}.")


def _copied(make: Callable[[], Result]) -> Result:
    """What a copy gave, or its failure under the exit code that scripts know."""
    try:
        return make()
    except RelayRunning as fault:
        raise Failure(ExitCode.UNAVAILABLE, type(fault).__name__, str(fault)) from fault
    except (copy.CopyBroken, faults.FileThere) as fault:
        raise Failure(ExitCode.VIOLATION, type(fault).__name__, str(fault)) from fault


def _told(found: statistics.Statistics) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []
    for name, value in msgspec.to_builtins(found).items():
        if isinstance(value, dict):
            told += [(f"{name} {key}", str(part)) for key, part in value.items()]
        elif isinstance(value, list):
            told += [(f"{name} {part['name']}", _consumer(part)) for part in value]
        else:
            told.append((name, _shown(name, value)))
    return told


def _shown(name: str, value: Any) -> str:
    return show_time(value) if name == "at" or name.endswith("_at") else str(value)


def _consumer(consumer: dict[str, Any]) -> str:
    behind = "of another log" if consumer["behind"] is None else f"{consumer['behind']} behind"
    return f"at {consumer['seq']}, {behind}, moved {show_time(consumer['moved_at'])}"
