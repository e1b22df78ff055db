"""The daemon as a process: assembled from its parts, told to stop by signals. Loaded only by whoever runs one."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from holdfast.cli import json_log
from holdfast.cli.hook_process import hooks_handled
from holdfast.cli.output import ExitCode, Failure, print_json, show_time
from holdfast.cli.process import stop_signal
from holdfast.device import holder
from holdfast.device.daemon import Daemon, Ended
from holdfast.device.device import Device, at_work
from holdfast.device.holder import Holder
from holdfast.device.home import LOCK_WAIT_S, Home, InUse
from holdfast.device.ipc_service import Service
from holdfast.protocol.refusal import REFUSALS
from holdfast.wire.network import CannotListen, SystemNetwork

_log = structlog.get_logger("holdfast.daemon")


def serve(home: Home, *, port: int | None, log_level: str) -> None:
    """Be the daemon of a home until a signal says otherwise."""
    json_log.configure(log_level)
    with alone_in(home) as device, endings():
        asyncio.run(_serve(device, port))


@contextmanager
def alone_in(home: Home, *, create: bool = False) -> Iterator[Device]:
    """The home's device, for a process that stays; whoever has it already is named."""
    try:
        with at_work(home, create=create, threaded=True, wait_s=0.0 if holder.find(home) else LOCK_WAIT_S) as device:
            yield device
    except InUse as fault:
        found = holder.find(home)
        if found is None:
            raise
        message = f"a daemon works in {home.path}: process {found.pid}, since {show_time(found.since)}."
        raise Failure(
            ExitCode.UNAVAILABLE, "daemon_running", f"{message} Stop it with `holdfast daemon down`."
        ) from fault


@contextmanager
def endings() -> Iterator[None]:
    """Say why a daemon cannot start, or must not be started again."""
    try:
        yield
    except CannotListen as fault:
        raise Failure(ExitCode.UNAVAILABLE, type(fault).__name__, str(fault)) from fault
    except Ended as ended:
        row = REFUSALS[ended.refusal]
        raise Failure(ExitCode.ENDED, str(ended.refusal), f"{ended.detail or ended.refusal}. {row.sentence}") from ended


async def _serve(device: Device, port: int | None) -> None:
    stop = stop_signal()
    await work(device, port, stop)


async def work(device: Device, port: int | None, stop: asyncio.Event, **told: str) -> None:
    """Be a device's daemon until told to stop; `told` goes with the line that says that it is there."""
    daemon = Daemon(device)
    service = Service(daemon, port=port)
    try:
        await service.start(SystemNetwork())
        url = {} if service.url is None else {"url": service.url}
        since = device.clock()
        holder.note(device.home, Holder(pid=os.getpid(), since=since, socket=service.socket, url=service.url))
        print_json({"socket": service.socket, **url, **told})
        sys.stdout.flush()  # whoever started us waits for this line
        _log.info("serving", socket=service.socket, pid=os.getpid(), pubkey=device.pubkey, **url)
        async with hooks_handled(daemon, service.app.counts, stop):
            await service.run_until(stop)
            _log.info("draining")
    finally:
        await service.close()
        holder.clear(device.home)
    _log.info("stopped")
