"""What can go wrong in a home or with its relay, as one message and an exit code. Loaded when it does: it knows every part."""

from collections.abc import Callable
from typing import Any

from holdfast.cli.output import ExitCode, Failure, plain
from holdfast.device.home import VARIABLE, Damaged, Home, InUse
from holdfast.device.invitation import InvalidInvitation
from holdfast.device.ipc_link import DaemonLost, NoDaemon, NotUnderstood
from holdfast.device.mesh import HasMesh, InvalidName, NoMesh, NotAllowed, NotThatOne, OtherRelay, Standing
from holdfast.device.publish import PutOff
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused
from holdfast.wire.client import InvalidUrl, Unreachable


def meaning(home: Home, error: Exception, if_put_off: str | None = None) -> Failure | None:
    """What an error means to whoever gave the command; None if nobody expected it.

    `if_put_off` is what to tell a person when the relay has not decided, in the place of what is said in general.
    """
    if isinstance(error, PutOff) and if_put_off is not None:
        return put_off(error, if_put_off)
    return next((tell(home, error) for kind, tell in _FAILURES.items() if isinstance(error, kind)), None)


def refusal(code: Refusal, detail: str, advice: str | None = None) -> Failure:
    """A no, as a failure; `advice` replaces what is said of such a no in general."""
    row, said = REFUSALS[code], plain(detail)
    by_status = _EXIT_CODES.get(row.http_status, ExitCode.ERROR) if row.is_permanent else ExitCode.UNAVAILABLE
    if advice is None:
        advice = "" if _says_what_to_do(code, said) else row.sentence
    return Failure(_OF_REFUSALS.get(code, by_status), str(code), f"{_sentence(said or code)} {advice}".rstrip())


def _says_what_to_do(code: Refusal, detail: str) -> bool:
    """Whether the detail already says what to do: in sentences, behind a semicolon, or because naming the fault is enough."""
    return detail.endswith(_ENDS) or "; " in detail or (bool(detail) and code in _IN_DETAIL)


def _sentence(text: str) -> str:
    return text if text.endswith(_ENDS) else f"{text}."


_ENDS = (".", "?", "!")
_IN_DETAIL = frozenset({Refusal.MALFORMED, Refusal.NOT_FOUND})


# Where a person at a home can be told more than anybody who is refused.
_ADVICE = {
    Refusal.NOT_A_MEMBER: "This home is not, or no longer, a member of its mesh; an admin may have revoked it.",
    Refusal.LAST_ADMIN: "A mesh keeps at least one admin. Make another member one first: holdfast member set-role WHO admin.",
    Refusal.KEY_TAKEN: f"This home was in that mesh before. Name another home in {VARIABLE} to join again.",
}

_EXIT_CODES = {404: ExitCode.NOT_FOUND, 410: ExitCode.NOT_FOUND, 409: ExitCode.VIOLATION}

# Where the HTTP status does not tell what a person typed from what a program sent.
_OF_REFUSALS = {
    Refusal.MALFORMED: ExitCode.USAGE,
    Refusal.TOO_LARGE: ExitCode.USAGE,
    Refusal.DESTINATION_KIND_UNSUPPORTED: ExitCode.USAGE,
    Refusal.INVITE_INVALID: ExitCode.VIOLATION,
}


def _no_mesh(home: Home) -> Failure:
    what = f"the home {home.path} is in no mesh" if home.exists() else f"there is no home at {home.path}"
    message = (
        f"{what}. Make a mesh (holdfast mesh create NAME --relay URL), join one (holdfast mesh join INVITE), "
        f"or name another home in {VARIABLE}."
    )
    return Failure(ExitCode.NOT_FOUND, "no_mesh", message)


def _no_daemon(home: Home, error: NoDaemon) -> Failure:
    """Where there is no home, to start a daemon is no advice."""
    return Failure(ExitCode.UNAVAILABLE, "no_daemon", str(error)) if home.exists() else _no_mesh(home)


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
        f"by {error.known}. Nothing was sent. Ask its operator whether the relay lost its key; if not, another program answers "
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


def _no_invitation(error: InvalidInvitation) -> str:
    return f"this invitation cannot be read: {error}. Copy all of it, or ask for another."


def _usage(home: Home, error: Exception) -> Failure:
    return Failure(ExitCode.USAGE, "usage", f"{error}.")


_FAILURES: dict[type[Exception], Callable[[Home, Any], Failure]] = {
    NoMesh: lambda home, error: _no_mesh(home),
    HasMesh: lambda home, error: Failure(ExitCode.VIOLATION, "has_mesh", _has_mesh(home, error)),
    OtherRelay: _other_relay,
    NotThatOne: lambda home, error: _not_that_one(error),
    NotAllowed: lambda home, error: Failure(ExitCode.ERROR, str(Refusal.NOT_PERMITTED), f"{error}."),
    InvalidUrl: _usage,
    InvalidInvitation: lambda home, error: Failure(ExitCode.USAGE, "usage", _no_invitation(error)),
    InvalidName: _usage,
    PutOff: lambda home, error: put_off(error, _KEPT if error.kept else _NOT_KEPT),
    Unreachable: lambda home, error: Failure(
        ExitCode.UNAVAILABLE, str(error.fault), _no_answer(error.url, error.detail)
    ),
    NoDaemon: _no_daemon,
    DaemonLost: lambda home, error: Failure(ExitCode.UNAVAILABLE, "daemon_lost", str(error)),
    NotUnderstood: lambda home, error: Failure(ExitCode.ERROR, "not_understood", f"{error}."),
    Refused: lambda home, error: refusal(error.refusal, error.detail, _ADVICE.get(error.refusal)),
    InUse: lambda home, error: Failure(ExitCode.UNAVAILABLE, "in_use", str(error)),
    Damaged: lambda home, error: Failure(ExitCode.VIOLATION, "damaged", str(error)),
}
