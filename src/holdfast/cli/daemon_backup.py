"""`holdfast daemon backup|restore`: a whole home in one file that only a passphrase opens, and back."""

import getpass
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from holdfast.cli import session as sessions
from holdfast.cli.at_home import AtHome, find_home
from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json, show_time
from holdfast.device import backup as backups
from holdfast.device import settings
from holdfast.device.backup import Contents, HomeThere
from holdfast.device.home import InUse, read_private
from holdfast.device.mesh import NoMesh
from holdfast.device.sealed_file import PASSPHRASE_CHARACTERS_MIN, NotSealed, SealBroken, WrongPassphrase
from holdfast.hook import agent_settings, doctor, intake, layout
from holdfast.store import faults
from holdfast.store.world import wall_clock

VARIABLE = "HOLDFAST_PASSPHRASE"
OTHERS = Contents(
    plain=(
        layout.SPOOL_NAME,
        layout.REJECTED_NAME,
        layout.SETTINGS_NAME,
        agent_settings.FILE_NAME,
        settings.FILE_NAME,
    ),
    databases=(layout.DATABASE_NAME,),
)

T = TypeVar("T")

PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file", metavar="FILE", help=f"Has the passphrase. Else: {VARIABLE}, or you are asked for it."
    ),
]


def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The file to make.")],
    home: AtHome = None,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Seal this home into one file: its keys, its mesh, all it has sent and received, and what waits to be sent.

    While the daemon runs or not. The relay that `holdfast up` runs has a backup of its own: `holdfast relay backup`.
    """
    found = find_home(home)
    with sessions.failures(found):
        if not found.exists():
            raise NoMesh
        passphrase = _passphrase(passphrase_file, is_new=True)
        if intake.nameless(found.path):
            doctor.look(found.path, intake.place)  # such a file is not among those that are copied
        made = _done(lambda: backups.back_up(found, target, passphrase, wall_clock, os.urandom, OTHERS))
    size = target.stat().st_size
    if as_json:
        print_json({"backup": str(target), "size": size, **msgspec.to_builtins(made)})
        return
    console().print(f"✓ {target}: {len(made.files)} files of {found.path}, {size} bytes")
    console().print("  Only its passphrase opens it. After you rotate the key, make another.")


def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="The file that `backup` made.")],
    home: AtHome = None,
    passphrase_file: PassphraseFile = None,
    replace: Annotated[bool, typer.Option("--replace", help="Put the home that is here aside.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a home of a backup. It goes on as a new sender; what the relay still has of its messages comes again, marked."""
    found = find_home(home)
    with sessions.failures(found):
        passphrase = _passphrase(passphrase_file, is_new=False)
        done = _done(
            lambda: backups.restore(found, source, passphrase, wall_clock, os.urandom, OTHERS, replace=replace)
        )
    if as_json:
        print_json({"home": str(found.path), **msgspec.to_builtins(done)})
        return
    console().print(f"✓ {found.path}: as it was at {show_time(done.made_at)}, with {done.waiting} to be sent")
    console().print(
        "  It is a new sender. If the home it was made of is still in use, stop that one: two must not share a key."
    )
    if done.before is not None:
        console().print(f"  The home that was here is {done.before}.")


def _passphrase(file: Path | None, *, is_new: bool) -> str:
    """From a file, the environment or the terminal; never from an option, which everybody on the machine can see."""
    if file is not None:
        passphrase = _in_file(file)
    elif VARIABLE in os.environ:
        passphrase = os.environ[VARIABLE]
    elif sys.stdin is not None and sys.stdin.isatty():
        passphrase = _asked(is_new)
    else:
        raise Failure(ExitCode.USAGE, "usage", f"no passphrase: name a file that has it, or set {VARIABLE}.")
    if any("\ud800" <= character <= "\udfff" for character in passphrase):
        raise Failure(ExitCode.USAGE, "usage", "the passphrase is not text in UTF-8.")
    if is_new and len(passphrase) < PASSPHRASE_CHARACTERS_MIN:
        message = f"the passphrase has {len(passphrase)} characters; it takes at least {PASSPHRASE_CHARACTERS_MIN}."
        raise Failure(ExitCode.USAGE, "usage", message)
    return passphrase


def _in_file(file: Path) -> str:
    try:
        return read_private(file).decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise Failure(ExitCode.USAGE, "usage", f"{file} is not text in UTF-8.") from error


def _asked(is_new: bool) -> str:
    passphrase = getpass.getpass("Passphrase: ")
    if is_new and getpass.getpass("Once more: ") != passphrase:
        raise Failure(ExitCode.USAGE, "usage", "the two are not the same; nothing was written.")
    return passphrase


def _done(make: Callable[[], T]) -> T:
    """What came of it, or its failure under the exit code that scripts know."""
    try:
        return make()
    except InUse as fault:
        message = f"{fault.where}: a daemon or another command works in this home. Stop it first: holdfast daemon down."
        raise Failure(ExitCode.UNAVAILABLE, type(fault).__name__, message) from fault
    except (HomeThere, faults.FileThere, NotSealed, SealBroken, WrongPassphrase) as fault:
        raise Failure(ExitCode.VIOLATION, type(fault).__name__, str(fault)) from fault
