"""What the commands of `mesh`, `member` and `topic` share: having it done in this home's mesh, and saying what went wrong.

Where a daemon works in the home, it does it. Else the command enters the home itself and, because it talks to the relay
anyway, does what the home owes its mesh: it offers what earlier commands left waiting, and sees to the keys of topics.
What that takes is loaded then: most commands only ask a daemon.
"""

import getpass
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from holdfast.cli.at_home import find_home
from holdfast.cli.output import ExitCode, Failure, json_text, plain
from holdfast.device.home import Home, InUse
from holdfast.device.ipc_administration import Arguments, Done
from holdfast.device.ipc_link import NoDaemon
from holdfast.protocol.action import NAME_CHARACTERS_MAX
from holdfast.protocol.refusal import Refusal

if TYPE_CHECKING:
    from holdfast.device.device import Device

SUFFIX_CHARACTERS = 6  # of the key, where somebody else has the user's name already

Tell = Callable[[str], None]


def administer(verb: str, arguments: Arguments | None = None, *, as_json: bool, if_put_off: str | None = None) -> Any:
    """Have something done in the mesh of this home, by its daemon where one runs; returns the document that came of it.

    `if_put_off` is what to tell a person when the relay has not decided, in the place of what is said in general.
    """
    home = find_home()
    with failures(home, if_put_off):
        check_exists(home)
        done = _done(home, verb, arguments or Arguments())
    tell = teller(as_json=as_json)
    for note in done.notes:
        tell(plain(note))
    return done.document


def _done(home: Home, verb: str, arguments: Arguments) -> Done:
    """Have the daemon do it, or do it here if none runs."""
    from holdfast.device.client import Client

    with suppress(NoDaemon), Client(home=home.path) as client:
        return client.administer(verb, arguments)
    import asyncio

    from holdfast.device.device import at_work

    try:
        with at_work(home) as device:
            return asyncio.run(_meet(device, verb, arguments))
    except InUse:
        with Client(home=home.path) as client:  # a daemon that was just starting has the home now
            return client.administer(verb, arguments)


def check_exists(home: Home) -> None:
    """Refuse a command that needs a home, if there is none."""
    if not home.exists():
        from holdfast.device.mesh import NoMesh

        raise NoMesh


def check_directory(home: Home) -> None:
    """Refuse if the home's directory does not exist; it need not be in a mesh, because agents can use it before."""
    if not home.path.is_dir():
        raise Failure(ExitCode.NOT_FOUND, "no_home", f"there is no home at {home.path}. Name one with --home.")


def check_no_daemon(home: Home) -> None:
    """Refuse to bring a home into a mesh that is in one: a daemon works there."""
    from holdfast.device.client import Client
    from holdfast.device.mesh import HasMesh, Standing

    with suppress(NoDaemon), Client(home=home.path) as client:
        client.version()
        membership = home.membership()
        if membership is not None:
            raise HasMesh(membership, Standing.MEMBER)


async def _meet(device: "Device", verb: str, arguments: Arguments) -> Done:
    from holdfast.device.administration import run
    from holdfast.device.mesh import in_session

    async with in_session(device) as session:
        return await run(session, verb, arguments)


@contextmanager
def failures(home: Home, if_put_off: str | None = None) -> Iterator[None]:
    """Turn what can go wrong into one message and an exit code."""
    try:
        yield
    except Failure:
        raise
    except Exception as error:
        from holdfast.cli.failures import meaning

        failure = meaning(home, error, if_put_off)
        if failure is None:
            raise
        raise failure from error


def refusal(code: Refusal, detail: str, advice: str | None = None) -> Failure:
    """The failure for a refusal; `advice` replaces the general advice for its code."""
    from holdfast.cli.failures import refusal

    return refusal(code, detail, advice)


def teller(*, as_json: bool) -> Tell:
    """Says on stderr what a command did beside what it was asked for, so that its output stays its own."""

    def tell(text: str) -> None:
        sys.stderr.write((json_text({"note": text}) if as_json else f"holdfast: {text}") + "\n")

    return tell


def user_name() -> str:
    """The default name of a member: USER@HOST, short enough for a suffix."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in many containers
        user = f"user{os.getuid()}"
    name = f"{user}@{socket.gethostname()}"
    return plain(name).strip()[: NAME_CHARACTERS_MAX - 1 - SUFFIX_CHARACTERS]
