"""A daemon for one job: a home in memory where the machine has such a place, a member by invitation, and gone at the end.

Loaded only by whoever runs one. What was not sent by then is lost with the home, and that is said.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import structlog

from holdfast.cli import json_log
from holdfast.cli.daemon_process import alone_in, endings, settings_of, work
from holdfast.cli.output import ExitCode, Failure
from holdfast.cli.process import run, stop_signal
from holdfast.cli.session import failures, user_name
from holdfast.device import mesh, outbox
from holdfast.device.daemon import Daemon
from holdfast.device.device import Device
from holdfast.device.home import Home
from holdfast.device.invitation import Invitation, read
from holdfast.device.mesh import NoMesh, in_session
from holdfast.device.publish import PutOff
from holdfast.protocol.outbox import Status
from holdfast.protocol.refusal import Refused
from holdfast.wire.client import RelayClient, Unreachable

INVITE = "HOLDFAST_INVITE"
LEAVE_TIMEOUT_S = 10.0  # for the relay to be told that the member is gone
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it

_log = structlog.get_logger("holdfast.ephemeral")


def serve(environment: Mapping[str, str], *, port: int | None, log_level: str | None, ttl_s: float | None) -> None:
    """Join by the invitation in the environment, work until a signal or the time says otherwise, leave, and leave nothing."""
    text = environment.get(INVITE)
    if not text:
        message = f"a daemon for one job takes an invitation in {INVITE}: holdfast mesh invite makes one."
        raise Failure(ExitCode.USAGE, "usage", message)
    with _home(environment) as home, failures(home):
        chosen = settings_of(home)
        json_log.configure(log_level or chosen.log_level)
        invitation = read(text)
        with alone_in(home, create=True) as device, endings():
            run(_serve(device, invitation, port, ttl_s))


@contextmanager
def _home(environment: Mapping[str, str]) -> Iterator[Home]:
    """A home that is gone afterwards."""
    places = [Path(environment[name]) for name in ("XDG_RUNTIME_DIR",) if environment.get(name)]
    usable = [place for place in (*places, _IN_MEMORY) if place.is_dir() and os.access(place, os.W_OK)]
    path = Path(tempfile.mkdtemp(prefix="holdfast-", dir=usable[0] if usable else None))
    try:
        yield Home(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


async def _serve(device: Device, invitation: Invitation, port: int | None, ttl_s: float | None) -> None:
    stop = stop_signal()
    name = f"{user_name()} {device.pubkey[:6]}"
    async with RelayClient(invitation.relay, device.secret, clock=device.clock, random=device.random) as client:
        await mesh.join(device, client, invitation, name)
    if ttl_s is not None:
        asyncio.get_running_loop().call_later(ttl_s, stop.set)
    try:
        await work(Daemon(device, settings=settings_of(device.home)), port, stop, home=str(device.home.path))
    finally:
        await _leave(device)


async def _leave(device: Device) -> None:
    """Tell the relay that the member is gone, and the log what goes with the home."""
    counts = device.look(outbox.count)
    if unsent := counts[Status.PENDING] + counts[Status.INFLIGHT]:
        _log.error("lost with this home: what the relay has not confirmed", count=unsent)
    try:
        async with asyncio.timeout(LEAVE_TIMEOUT_S), in_session(device) as session:
            await session.leave()
    except (TimeoutError, Refused, PutOff, Unreachable, NoMesh, mesh.OtherRelay) as trouble:
        _log.warning("the relay was not told that this member is gone", detail=str(trouble))
