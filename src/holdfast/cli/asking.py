"""What the commands that ask the daemon share: finding it, what to say of a send that it did not answer, and reading what people write for times."""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli import session as sessions
from holdfast.cli.at_home import find_home
from holdfast.cli.output import ExitCode, Failure
from holdfast.protocol.refusal import Refused
from holdfast.protocol.schedule import DAY, HOUR, SECOND
from holdfast.store.world import wall_clock

if TYPE_CHECKING:
    from holdfast.device.client import Client
    from holdfast.device.ipc_link import SendUnanswered

_UNITS = {"s": SECOND, "m": 60 * SECOND, "h": HOUR, "d": DAY}
_AHEAD = re.compile(r"\+([0-9]{1,9})([smhd])", re.ASCII)
_AGO = re.compile(r"-?([0-9]{1,9})([smhd])", re.ASCII)


@contextmanager
def daemon(named: Path | None = None) -> Iterator["Client"]:
    """The daemon of the home that is named, or of the user's own; what goes wrong becomes a message and an exit code."""
    from holdfast.device.client import Client  # here, because every command would pay for it

    home = find_home(named)
    with sessions.failures(home), Client(home=home.path) as client:
        yield client


def in_doubt(lost: "SendUnanswered", times: Mapping[str, int]) -> Failure:
    """What to say when nobody knows whether it was sent: how to ask again without sending it twice."""
    name = lost.client_message_id
    options = " ".join([f"--id {shlex.quote(name)}", *(f"{option} {at}" for option, at in times.items())])
    message = f"the daemon went away before it had answered. The message may have been taken as {name}"
    return Failure(ExitCode.UNAVAILABLE, "daemon_lost", f"{message}; repeat the command with `{options}`.")


def is_relative(text: str) -> bool:
    """Whether a time is relative, so that the same text means another time later."""
    return _AHEAD.fullmatch(text) is not None


def read_time(text: str, what: str) -> int:
    """Microseconds since 1970 of `2026-11-15T09:30:00Z` (UTC where no zone is named), or of `+90s`, `+10m`, `+2h`, `+1d`."""
    ahead = _AHEAD.fullmatch(text)
    return _absolute(text, what, "+10m") if ahead is None else wall_clock() + _lasting(ahead)


def read_past(text: str, what: str) -> int:
    """Like `read_time`, of a time that has passed; relative ones are `-90s`, `-10m`, `-2h`, `-1d`, also without the sign."""
    ago = _AGO.fullmatch(text)
    return _absolute(text, what, "-10m") if ago is None else max(0, wall_clock() - _lasting(ago))


def _lasting(found: re.Match[str]) -> int:
    return int(found[1]) * _UNITS[found[2]]


def _absolute(text: str, what: str, relative: str) -> int:
    from holdfast.device.ipc_queries import read_time as read

    try:
        return read(text)
    except Refused as refused:
        raise Failure(ExitCode.USAGE, "usage", f"{what}: {refused.detail}, or {relative}.") from refused
