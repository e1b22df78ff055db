"""`holdfast daemon accept-host|remint`: what to do with a home that is found on another machine."""

import os
from typing import Annotated

import msgspec
import typer

from holdfast.cli import session as sessions
from holdfast.cli.at_home import AtHome, find_home
from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json
from holdfast.device import host, settings
from holdfast.device import remint as reminting
from holdfast.device.mesh import NoMesh
from holdfast.protocol import keys
from holdfast.store.settings import SettingsInvalid
from holdfast.store.world import wall_clock


def accept_host(home: AtHome = None, as_json: AsJson = False) -> None:
    """Say that this home lives on this machine now, with the key it has. The machine it came from must not use it any more."""
    found = find_home(home)
    with sessions.failures(found):
        if not found.exists():
            raise NoMesh
        try:
            override = settings.load(found.path, os.environ).host_id
        except SettingsInvalid as error:
            raise Failure(ExitCode.USAGE, "settings", str(error)) from error
        with found.entered(wait_s=0.0):
            host.accept(found, host.read_machine(override=override))
    if as_json:
        print_json({"home": str(found.path)})
    else:
        console().print(f"{found.path} lives on this machine now")


def remint(
    home: AtHome = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a copied home a home of its own: another key, in no mesh, with nothing to send. What it had is put aside."""
    found = find_home(home)
    with sessions.failures(found):
        if not found.exists():
            raise NoMesh
        if not yes:
            typer.confirm(f"{found.path} leaves its mesh and gets another key. Go on?", abort=True, err=True)
        with found.entered(wait_s=0.0):
            done = reminting.remint(found, wall_clock, os.urandom)
    if as_json:
        print_json(msgspec.to_builtins(done))
        return
    console().print(f"the key of {found.path} is now {keys.npub(done.pubkey)}; what it had is in {done.aside}")
    console().print("It is in no mesh: let somebody invite it, then: holdfast mesh join INVITE")
