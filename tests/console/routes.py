"""Every route of both consoles, from the tables themselves: a new one is tested without anybody's remembering it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.console.application import Console
from holdfast.console.daemon_console import DaemonConsole
from holdfast.console.relay_console import RelayConsole
from holdfast.device.daemon import Daemon
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.device.ipc import Application as Ipc
from holdfast.device.ipc_handlers import Handlers
from holdfast.export.exporter import Exporter
from holdfast.relay.database import open_relay
from holdfast.relay.identity import Identity
from holdfast.relay.relay import Relay
from holdfast.relay.server import Application
from holdfast.relay.settings import Settings
from holdfast.store.sqlite import MEMORY
from holdfast.wire.network import SystemNetwork
from tests.device.house import furnish


def relay_routes(directory: Path) -> list[tuple[str, str]]:
    with relay_console(directory) as console:
        return _written(console)


def daemon_routes(directory: Path) -> list[tuple[str, str]]:
    with daemon_console(directory) as (console, _):
        return _written(console)


@contextmanager
def relay_console(directory: Path) -> Iterator[Console]:
    """The console of a relay that does not run."""
    engine = open_relay(MEMORY)
    directory.mkdir()
    try:
        relay = Relay(engine, Settings(), Identity.load(directory, bytes_of), inline=True)
        yield RelayConsole(relay, Application(relay, Exporter(MEMORY, "none"))).console
    finally:
        engine.close()


@contextmanager
def daemon_console(directory: Path) -> Iterator[tuple[Console, Handlers]]:
    """The console of a daemon that does not run, and the routes of that daemon."""
    home = Home(directory)
    furnish(home)
    with at_work(home) as device:
        daemon = Daemon(device)
        app = Ipc(daemon, Exporter(home.database, "none"))
        yield DaemonConsole(daemon, app.handlers, app.counts, SystemNetwork()).console, app.handlers


def bytes_of(size: int) -> bytes:
    return b"\x07" * size


def _written(console: Console) -> list[tuple[str, str]]:
    """Method and path of each route, with something in the place of every parameter."""
    return [(route.method, re.sub(r"\{\w+\}", "x", route.path)) for route in console.routes.routes]
