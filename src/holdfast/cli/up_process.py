"""Relay and daemon in one process. Loaded only by whoever runs both.

They are the same programs as apart, with a socket between them: what holds for two machines holds here, and a mesh that
begins on a laptop can move out later.
"""

import asyncio
import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import structlog

from holdfast.cli import json_log
from holdfast.cli.daemon_process import alone_in, check_place, endings, settings_of, work
from holdfast.cli.output import ExitCode, Failure
from holdfast.cli.process import run, stop_signal
from holdfast.cli.relay_process import open_in, with_console
from holdfast.cli.session import user_name
from holdfast.device import settings
from holdfast.device.daemon import Daemon
from holdfast.device.device import Device
from holdfast.device.home import Home, Membership
from holdfast.device.mesh import Standing, found, standing
from holdfast.export.exporter import Exporter
from holdfast.relay import identity, lock
from holdfast.relay.database import EXPORT_READER
from holdfast.relay.service import Service
from holdfast.relay.settings import Settings
from holdfast.store import files
from holdfast.wire.client import RelayClient
from holdfast.wire.network import SystemNetwork, is_loopback

_log = structlog.get_logger("holdfast.up")


def serve(home: Home, data: Path, chosen: Settings, *, port: int | None, mesh_name: str, is_port_given: bool) -> None:
    """Run both until a signal says otherwise."""
    json_log.configure(chosen.log_level)
    with alone_in(home, create=True) as device, endings():
        check_place(device, settings_of(home))
        membership, stands = standing(device)
        if membership is not None and stands is not Standing.NONE:
            if not (data / identity.RELAY_KEY).exists():  # no relay is made, nor its keys, to be refused afterwards
                raise _elsewhere(device, membership)
            if not is_port_given:
                chosen = _where_the_mesh_is(membership, chosen)
        files.make_directory(data)
        with lock.hold(data):
            run(_serve(device, data, chosen, port, mesh_name))


def _elsewhere(device: Device, membership: Membership) -> Failure:
    advice = "Run `holdfast daemon run` to work there, or name another home."
    if is_loopback(urlsplit(membership.relay).hostname or ""):  # it may be ours, in another directory
        advice = f"If `holdfast up --data DIR` made that relay, name the same directory again with --data. {advice}"
    return Failure(ExitCode.VIOLATION, "has_mesh", f"{_home_in_mesh(device, membership)}. {advice}")


def _home_in_mesh(device: Device, membership: Membership) -> str:
    return f"the home {device.home.path} is in mesh {membership.mesh_name} at {membership.relay}"


def _where_the_mesh_is(membership: Membership, chosen: Settings) -> Settings:
    """The settings with the port of the home's mesh: its members know no other address."""
    port = urlsplit(membership.relay).port
    return chosen if port is None else msgspec.structs.replace(chosen, port=port)


def _check_place(device: Device, relay_pubkey: str, port: int) -> None:
    """Refuse a home whose mesh is at another relay, or at another port of this one."""
    membership, stands = standing(device)
    if membership is None or stands is Standing.NONE:
        return
    if membership.relay_pubkey != relay_pubkey:
        raise _elsewhere(device, membership)
    known = urlsplit(membership.relay)
    if known.scheme == "http" and known.port not in (None, port):  # behind https another program has the port
        advice = f"Its members know no other address: use --relay-port {known.port}, or leave it out."
        message = f"{_home_in_mesh(device, membership)}, not at port {port}. {advice}"
        raise Failure(ExitCode.VIOLATION, "other_port", message)


async def _serve(device: Device, data: Path, chosen: Settings, port: int | None, mesh_name: str) -> None:
    stop = stop_signal()
    engine, relay = open_in(data, chosen)
    service = Service(relay, Exporter(engine.where, EXPORT_READER))
    pages = with_console(relay, service, None)
    try:
        _check_place(device, relay.pubkey, chosen.port)
        await service.start(SystemNetwork())
        lock.note_address(data, service.url)
        await _settle(device, service.url, mesh_name)
        _log.info("relay", url=service.url, data=str(data), pubkey=relay.pubkey)
        serving = asyncio.create_task(service.run_until(stop))
        working = asyncio.create_task(work(_daemon(device), port, stop, relay=service.url))
        await asyncio.wait({serving, working}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()  # whichever ended, the other ends with it
        await asyncio.gather(serving, working)
    finally:
        pages.end()
        await service.close()


def _daemon(device: Device) -> Daemon:
    """The device's daemon; how much both log is the relay's setting."""
    return Daemon(device, settings=settings_of(device.home), reread=lambda: settings.load(device.home.path, os.environ))


async def _settle(device: Device, url: str, mesh_name: str) -> None:
    """See to it that the home is in a mesh at this relay."""
    membership, stands = standing(device)
    if membership is not None and stands is not Standing.NONE:
        return
    async with RelayClient(url, device.secret, clock=device.clock, random=device.random) as client:
        await found(device, client, mesh_name, user_name())
