"""What the commands of `mesh`, `member` and `topic` share: having it done in this home's mesh, and saying what went wrong.

Where a daemon works in the home, it does it. Else the command enters the home itself and, because it talks to the relay
anyway, does what the home owes its mesh: it offers what earlier commands left waiting, and sees to the keys of topics.
"""

import asyncio
import getpass
import json
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from holdfast.cli.output import ExitCode, Failure
from holdfast.device.administration import Arguments, Done, run
from holdfast.device.client import Client
from holdfast.device.device import Device, at_work
from holdfast.device.home import VARIABLE, Damaged, Home, InUse
from holdfast.device.invitation import InvalidInvitation
from holdfast.device.ipc_link import DaemonLost, NoDaemon, NotUnderstood
from holdfast.device.mesh import (
    HasMesh,
    InvalidName,
    NoMesh,
    NotAllowed,
    NotThatOne,
    OtherRelay,
    Standing,
    in_session,
)
from holdfast.device.publish import PutOff
from holdfast.protocol.action import NAME_CHARACTERS_MAX
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused
from holdfast.wire.client import InvalidUrl, Unreachable

SUFFIX_CHARACTERS = 6  # of the key, where somebody else has the user's name already

Tell = Callable[[str], None]


def administer(verb: str, arguments: Arguments | None = None, *, as_json: bool, if_put_off: str | None = None) -> Any:
    """Have something done in the mesh of this home, by its daemon where one runs; returns the document that came of it.

    `if_put_off` is what to tell a person when the relay has not decided, in the place of what is said in general.
    """
    home = Home.find()
    with failures(home):
        if not home.exists():
            raise NoMesh
        try:
            done = _done(home, verb, arguments or Arguments())
        except PutOff as error:
            if if_put_off is None:
                raise
            raise put_off(error, if_put_off) from error
    tell = teller(as_json=as_json)
    for note in done.notes:
        tell(plain(note))
    return done.document


def _done(home: Home, verb: str, arguments: Arguments) -> Done:
    """Done by the daemon, or by ourselves where there is none."""
    with suppress(NoDaemon), Client(home=home.path) as client:
        return client.administer(verb, arguments)
    try:
        with at_work(home) as device:
            return asyncio.run(_meet(device, verb, arguments))
    except InUse:
        with Client(home=home.path) as client:  # a daemon that was just starting has the home now
            return client.administer(verb, arguments)


def check_no_daemon(home: Home) -> None:
    """Refuse to bring a home into a mesh that is in one: a daemon works there."""
    with suppress(NoDaemon), Client(home=home.path) as client:
        client.version()
        membership = home.membership()
        if membership is not None:
            raise HasMesh(membership, Standing.MEMBER)


async def _meet(device: Device, verb: str, arguments: Arguments) -> Done:
    async with in_session(device) as session:
        return await run(session, verb, arguments)


@contextmanager
def failures(home: Home) -> Iterator[None]:
    """Turn what can go wrong into one message and an exit code."""
    try:
        yield
    except tuple(_FAILURES) as error:
        tell = next(tell for kind, tell in _FAILURES.items() if isinstance(error, kind))
        raise tell(home, error) from error


def refusal(code: Refusal, detail: str, advice: str | None = None) -> Failure:
    """A no, as a failure; `advice` replaces what is said of such a no in general."""
    row = REFUSALS[code]
    exit_code = _EXIT_CODES.get(row.http_status, ExitCode.ERROR) if row.is_permanent else ExitCode.UNAVAILABLE
    said = plain(detail)
    return Failure(exit_code, str(code), f"{said or code}. {row.sentence if advice is None else advice}")


# Where a person at a home can be told more than anybody who is refused.
_ADVICE = {
    Refusal.NOT_A_MEMBER: "This home is not, or no longer, a member of its mesh; an admin may have revoked it.",
    Refusal.KEY_TAKEN: f"This home was in that mesh before. Name another home in {VARIABLE} to join again.",
}

_EXIT_CODES = {404: ExitCode.NOT_FOUND, 410: ExitCode.NOT_FOUND, 409: ExitCode.VIOLATION}


def _no_mesh(home: Home) -> str:
    return (
        f"the home {home.path} is in no mesh. Make one (holdfast mesh create NAME --relay URL), join one "
        f"(holdfast mesh join INVITE), or name another home in {VARIABLE}."
    )


def _has_mesh(home: Home, error: HasMesh) -> str:
    found = error.membership
    if error.standing is Standing.UNFINISHED:
        return (
            f"the home {home.path} has asked {found.relay} for mesh {found.mesh_name} and has no answer yet. Run "
            f"the same command as then again, or name another home in {VARIABLE}. If that relay is gone for good, "
            f"remove {home.path / 'home.json'}."
        )
    return (
        f"the home {home.path} is in mesh {found.mesh_name} at {found.relay}, and a home has one mesh. "
        f"Name another home in {VARIABLE}."
    )


def _other_relay(home: Home, error: OtherRelay) -> Failure:
    message = (
        f"another relay answers at {error.url}: it shows the key {error.shown}, and the home {home.path} knows its relay "
        f"by {error.known}. Nothing was sent. Ask its operator whether the relay lost its key; if not, somebody answers "
        "in its place."
    )
    return Failure(ExitCode.VIOLATION, "other_relay", message)


def _not_that_one(error: NotThatOne) -> Failure:
    if error.found:
        message = f"{error.found} {error.what}s go by {error.name}; give the id or the key of the one you mean."
        return Failure(ExitCode.USAGE, "ambiguous", message)
    message = f"there is no {error.what} {error.name} in this mesh; see holdfast {error.what} list."
    return Failure(ExitCode.NOT_FOUND, "not_found", message)


def put_off(error: PutOff, advice: str) -> Failure:
    """The relay has not decided; `advice` says what has become of the request."""
    if isinstance(error.says, Refusal):
        message = f"the relay {error.url} puts it off: {plain(error.detail)}. {REFUSALS[error.says].sentence}"
    else:
        message = _no_answer(error.url, error.detail)
    return Failure(ExitCode.UNAVAILABLE, str(error.says), f"{message} {advice}")


_KEPT = "What you asked for is written down, and the next command offers it again."
_NOT_KEPT = "What earlier commands asked for is still waiting; this one was not written down."


def _no_answer(url: str, detail: str) -> str:
    return f"the relay {url} does not answer: {plain(detail)}. Check that it runs and that the address is right."


def _usage(home: Home, error: Exception) -> Failure:
    return Failure(ExitCode.USAGE, "usage", f"{error}.")


_FAILURES: dict[type[Exception], Callable[[Home, Any], Failure]] = {
    NoMesh: lambda home, error: Failure(ExitCode.NOT_FOUND, "no_mesh", _no_mesh(home)),
    HasMesh: lambda home, error: Failure(ExitCode.VIOLATION, "has_mesh", _has_mesh(home, error)),
    OtherRelay: _other_relay,
    NotThatOne: lambda home, error: _not_that_one(error),
    NotAllowed: lambda home, error: Failure(ExitCode.ERROR, str(Refusal.NOT_PERMITTED), f"{error}."),
    InvalidUrl: _usage,
    InvalidInvitation: _usage,
    InvalidName: _usage,
    PutOff: lambda home, error: put_off(error, _KEPT if error.kept else _NOT_KEPT),
    Unreachable: lambda home, error: Failure(
        ExitCode.UNAVAILABLE, str(error.fault), _no_answer(error.url, error.detail)
    ),
    NoDaemon: lambda home, error: Failure(ExitCode.UNAVAILABLE, "no_daemon", str(error)),
    DaemonLost: lambda home, error: Failure(ExitCode.UNAVAILABLE, "daemon_lost", str(error)),
    NotUnderstood: lambda home, error: Failure(ExitCode.ERROR, "not_understood", f"{error}."),
    Refused: lambda home, error: refusal(error.refusal, error.detail, _ADVICE.get(error.refusal)),
    InUse: lambda home, error: Failure(ExitCode.UNAVAILABLE, "in_use", str(error)),
    Damaged: lambda home, error: Failure(ExitCode.VIOLATION, "damaged", str(error)),
}


def teller(*, as_json: bool) -> Tell:
    """Says on stderr what a command did beside what it was asked for, so that its output stays its own."""

    def tell(text: str) -> None:
        sys.stderr.write((json.dumps({"note": text}, ensure_ascii=False) if as_json else f"holdfast: {text}") + "\n")

    return tell


def print_list(rows: Sequence[dict[str, Any]]) -> None:
    sys.stdout.write(json.dumps(rows, ensure_ascii=False) + "\n")


def plain(text: str) -> str:
    """Somebody else's text as a terminal may show it: nothing in it moves the cursor."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def user_name() -> str:
    """What a person is called in a mesh who has said nothing about it; short enough for a suffix."""
    name = f"{getpass.getuser()}@{socket.gethostname()}"
    return plain(name).strip()[: NAME_CHARACTERS_MAX - 1 - SUFFIX_CHARACTERS]
