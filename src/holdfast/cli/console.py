"""`holdfast console`: a page in the browser for this home, or for a relay, signed in by a link that works once."""

import asyncio
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import session as sessions
from holdfast.cli.daemon import AtHome, find_home
from holdfast.cli.output import AsJson, ExitCode, Failure, console, print_json

ReadOnly = Annotated[bool, typer.Option("--read-only", help="Look, and change nothing.")]


def open_console(
    home: AtHome = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Of the relay that runs on this directory.")
    ] = None,
    relay: Annotated[
        str | None, typer.Option("--relay", metavar="URL", help="Of a relay elsewhere, with --key.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="The key (nsec) of an operator or reader of it.")
    ] = None,
    read_only: ReadOnly = False,
    browser: Annotated[bool, typer.Option(help="Open it; else the link is only printed.")] = True,
    as_json: AsJson = False,
) -> None:
    """Open the console of this home's daemon, or of a relay. The link works once, within two minutes."""
    if relay is not None and (data is not None or key is None):
        raise Failure(ExitCode.USAGE, "usage", "--relay goes with --key, and not with --data.")
    if key is not None and relay is None and data is None:
        raise Failure(ExitCode.USAGE, "usage", "--key goes with --relay or --data.")
    role = "reader" if read_only else "operator"
    link = _of_daemon(home, role) if data is None and relay is None else _of_relay(data, relay, key, role)
    if as_json:
        print_json(link)
        return
    if browser and sys.stdout.isatty() and webbrowser.open(link["url"]):
        console().print("The console is open in your browser.")
        return
    console().print(f"Open this within two minutes; it works once:\n{link['url']}")


def _of_daemon(home: Path | None, role: str) -> dict[str, Any]:
    from holdfast.device.ipc_link import Link

    found = find_home(home)
    with sessions.failures(found):
        link = Link(home=found.path)
        try:
            return link.ask("POST", "/v1/console", dict[str, Any], body={"role": role})
        finally:
            link.close()


def _of_relay(data: Path | None, relay: str | None, key: Path | None, role: str) -> dict[str, Any]:
    from holdfast.cli.relay_store import check_there
    from holdfast.protocol.refusal import Refused
    from holdfast.relay import lock
    from holdfast.relay.identity import OPERATOR_KEY, read_key
    from holdfast.wire.client import InvalidUrl, RelayClient, Unreachable

    if data is not None:
        check_there(data)
    try:
        url = relay if data is None else lock.address(data)
    except lock.NotRunning as fault:
        raise Failure(ExitCode.UNAVAILABLE, type(fault).__name__, str(fault)) from fault
    secret = read_key(key or (data or Path()) / OPERATOR_KEY)

    async def ask() -> dict[str, Any]:
        async with RelayClient(url or "", secret) as client:
            link = await client.console_link(role)
            return {"url": client.url + link.path, "role": link.role}

    try:
        return asyncio.run(ask())
    except InvalidUrl as error:
        raise Failure(ExitCode.USAGE, "usage", f"{error}.") from error
    except Refused as refused:
        raise Failure(ExitCode.ERROR, refused.refusal.value, refused.detail) from refused
    except Unreachable as fault:
        raise Failure(ExitCode.UNAVAILABLE, fault.fault.value, str(fault)) from fault
