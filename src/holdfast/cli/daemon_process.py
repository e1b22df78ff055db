"""The daemon as a process: assembled from its parts, told to stop by signals. Loaded only by whoever runs one."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

from holdfast.cli import json_log, settings_seen
from holdfast.cli.hook_process import hooks_handled
from holdfast.cli.output import ExitCode, Failure, print_json, show_time
from holdfast.cli.process import run, stop_signal
from holdfast.cli.rotated_log import RotatedLog
from holdfast.console.daemon_console import DaemonConsole
from holdfast.device import holder, host, settings
from holdfast.device.daemon import Daemon, Ended
from holdfast.device.device import Device, at_work
from holdfast.device.holder import Holder
from holdfast.device.home import LOCK_WAIT_S, Home, InUse
from holdfast.device.ipc_service import Service
from holdfast.device.settings import Settings
from holdfast.protocol.refusal import REFUSALS, Refused
from holdfast.store.settings import SettingsInvalid
from holdfast.store.world import wall_clock
from holdfast.wire.network import CannotListen, SystemNetwork

_log = structlog.get_logger("holdfast.daemon")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a daemon is to run, beside its settings."""

    port: int | None = None
    log_level: str | None = None  # in the place of the setting's
    log_file: Path | None = None  # which stderr is; then it is put aside as it grows


def serve(home: Home, options: Options) -> None:
    """Be the daemon of a home until a signal says otherwise."""
    chosen = settings_of(home)
    log = None if options.log_file is None else RotatedLog(options.log_file, chosen.log, wall_clock)
    json_log.configure(options.log_level or chosen.log_level, log)
    with alone_in(home) as device, endings():
        check_place(device, chosen)
        run(_serve(device, options, chosen, log))


def check_place(device: Device, chosen: Settings) -> None:
    """Refuse a home that others could open, or that was copied here from another machine."""
    device.home.check_modes()
    try:
        host.check(device.home, host.read_machine(override=chosen.host_id), chosen.clone_policy)
    except Refused as refused:
        raise Ended(refused.refusal, refused.detail) from refused


def settings_of(home: Home) -> Settings:
    """The settings of a home, or why there are none."""
    try:
        return settings.load(home.path, os.environ)
    except SettingsInvalid as error:
        raise Failure(ExitCode.USAGE, "settings", str(error)) from error


def _reload_on_signal(daemon: Daemon) -> None:
    """SIGHUP has the settings read anew; bad ones are told in the log, and those before stay."""

    def reload() -> None:
        try:
            _log.info("settings read anew", changed=daemon.reload())
        except Refused as refused:
            _log.error("the settings are not good; those before stay", detail=refused.detail)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


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


async def _serve(device: Device, options: Options, chosen: Settings, log: RotatedLog | None) -> None:
    stop = stop_signal()

    def reloaded(found: Settings) -> None:
        json_log.set_level(options.log_level or found.log_level)
        if log is not None:
            log.settings = found.log

    def reread() -> Settings:
        return settings.load(device.home.path, os.environ)

    await work(Daemon(device, settings=chosen, reread=reread, reloaded=reloaded), options.port, stop)


async def work(daemon: Daemon, port: int | None, stop: asyncio.Event, **told: str) -> None:
    """Be a device's daemon until told to stop; `told` goes with the line that says that it is there."""
    network = SystemNetwork()
    device, service = daemon.device, Service(daemon, port=port)
    _reload_on_signal(daemon)
    pages = DaemonConsole(daemon, service.app.handlers, service.app.counts, network)
    try:
        await service.start(network)
        url = {} if service.url is None else {"url": service.url}
        settings_seen.tell(device.home.path, "daemon", daemon.settings)
        since = device.clock()
        holder.note(device.home, Holder(pid=os.getpid(), since=since, socket=service.socket, url=service.url))
        print_json({"socket": service.socket, **url, **told})
        sys.stdout.flush()  # whoever started us waits for this line
        _log.info("serving", socket=service.socket, pid=os.getpid(), pubkey=device.pubkey, **url)
        async with hooks_handled(daemon, service.app.counts, stop):
            await service.run_until(stop)
            _log.info("draining")
    finally:
        await pages.close()
        await service.close()
        holder.clear(device.home)
    _log.info("stopped")
