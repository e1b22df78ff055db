"""`holdfast up`: a relay and this home's daemon in one process, for a laptop that needs nobody else."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import session as sessions
from holdfast.cli.daemon import AtHome, Port, find_home
from holdfast.cli.output import ExitCode, Failure
from holdfast.cli.relay import allow_connections
from holdfast.cli.relay_store import settings_of
from holdfast.relay import lock
from holdfast.store import files

RELAY_DIRECTORY = "relay"


def up(
    home: AtHome = None,
    port: Port = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Where the relay keeps everything. Default: HOME/relay."),
    ] = None,
    relay_host: Annotated[str | None, typer.Option(help="The relay's address. Default: 127.0.0.1.")] = None,
    relay_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The relay's port. Default: 7447, or that of the home's mesh.")
    ] = None,
    mesh: Annotated[str, typer.Option(metavar="NAME", help="What a new mesh is called.")] = "home",
) -> None:
    """Run a relay and this home's daemon together until told to stop. A home without a mesh founds one here."""
    found = find_home(home)
    place = data or found.path / RELAY_DIRECTORY
    files.make_directory(found.path)
    chosen = settings_of(place, None, relay_host, relay_port)
    allow_connections(chosen.limits.connections_max)
    with sessions.failures(found):
        try:
            # Servers are large, and every other command starts without them.
            from holdfast.cli.up_process import serve

            serve(found, place, chosen, port=port, mesh_name=mesh, is_port_given=relay_port is not None)
        except lock.RelayRunning as fault:
            raise Failure(ExitCode.UNAVAILABLE, type(fault).__name__, str(fault)) from fault
