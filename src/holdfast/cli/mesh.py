"""`holdfast mesh`: make a mesh, let others in, join one, look at it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from holdfast.cli import session as sessions
from holdfast.cli.at_home import find_home
from holdfast.cli.output import AsJson, console, plain, print_json, print_table, show_time, standard_input
from holdfast.device import invitation, mesh
from holdfast.device.device import Device, at_work
from holdfast.device.home import Membership
from holdfast.device.ipc_administration import InviteArguments, WithdrawArguments
from holdfast.protocol.action import Role
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import HOUR
from holdfast.relay.identity import read_key
from holdfast.store.world import wall_clock
from holdfast.wire.client import RelayClient, relay_url
from holdfast.wire.network import is_loopback

app = typer.Typer(help="Make a mesh, let others in, join one.", no_args_is_help=True)

INVITE_HOURS = 24
INVITE_HOURS_MAX = 24 * 30

_NO_FOUNDER = (
    "This relay lets only its operators make meshes, and users of its own machine while nobody else can reach it. If you run "
    "it, add --operator-key DATA/operator.key, from its data directory; if not, ask its operator for an invitation (holdfast "
    "mesh invite --role admin)."
)
_NO_OPERATOR = (
    "The key of --operator-key is not an operator's of this relay. Take operator.key from the relay's data directory, or a "
    "key that its setting `operators` names."
)

As = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Your name in the mesh; USER@HOST if not given.")]
Enter = Callable[[Device, RelayClient, str], Awaitable[Membership]]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="A name for people.")],
    relay: Annotated[str, typer.Option("--relay", metavar="URL", help="The relay's address.")],
    member_name: As = None,
    operator_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The relay's operator.key, where not everybody may make meshes."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a new mesh at a relay, with this home as its first member and admin.

    The operator's key vouches for this home, which has a key of its own; it is not kept here and does not leave the machine.
    """
    operator = None if operator_key is None else read_key(operator_key)

    async def enter(device: Device, client: RelayClient, called: str) -> Membership:
        try:
            return await mesh.found(device, client, name, called, operator)
        except Refused as refused:
            if refused.refusal is not Refusal.NOT_PERMITTED:
                raise
            advice = _NO_FOUNDER if operator is None else _NO_OPERATOR
            raise sessions.refusal(refused.refusal, refused.detail, advice) from refused

    membership = _enter(relay, member_name, enter)
    _say_entered(membership, "made", as_json)


@app.command()
def join(
    invite: Annotated[str, typer.Argument(metavar="INVITE", help="The invitation's text; - reads it from stdin.")],
    member_name: As = None,
    as_json: AsJson = False,
) -> None:
    """Join the mesh that an invitation is for."""
    with sessions.failures(find_home()):
        invited = invitation.read(standard_input().readline() if invite == "-" else invite)

    async def enter(device: Device, client: RelayClient, called: str) -> Membership:
        return await mesh.join(device, client, invited, called)

    membership = _enter(invited.relay, member_name, enter)
    _say_entered(membership, "joined", as_json)


@app.command()
def invite(
    role: Annotated[Role, typer.Option(help="What the new member may do.")] = Role.MEMBER,
    hours: Annotated[
        int, typer.Option(min=1, max=INVITE_HOURS_MAX, help="For how long the invitation is good.")
    ] = INVITE_HOURS,
    as_json: AsJson = False,
) -> None:
    """Print an invitation: one person may join with it, once, until it expires."""

    expires_at = wall_clock() + hours * HOUR
    advice = "Run it again for another invitation; this one is lost."
    made = sessions.administer(
        "invite", InviteArguments(role=role, expires_at=expires_at), as_json=as_json, if_put_off=advice
    )
    if as_json:
        print_json(made)
    else:
        print(made["invite"])
        note = f"this invitation lets one new {role} join, until {show_time(expires_at)}. Send it by a private way"
        where = invitation.read(made["invite"]).relay
        if is_loopback(urlsplit(where).hostname or ""):
            note += f". It is for this machine: nobody else reaches {where}"
        sessions.teller(as_json=False)(note)


@app.command()
def withdraw(
    invite: Annotated[str, typer.Argument(metavar="INVITE", help="The invitation's text, or - to read it from stdin.")],
    as_json: AsJson = False,
) -> None:
    """Make an invitation void that nobody has used yet."""
    with sessions.failures(find_home()):
        void = invitation.read(standard_input().readline() if invite == "-" else invite)

    withdrawn = sessions.administer("withdraw", WithdrawArguments(key=void.key), as_json=as_json)
    if as_json:
        print_json(withdrawn)
    else:
        print("the invitation is void")


@app.command()
def show(as_json: AsJson = False) -> None:
    """The mesh of this home, and who this home is in it."""

    fields = sessions.administer("show_mesh", as_json=as_json)
    if as_json:
        print_json(fields)
    else:
        print_table(("field", "value"), [(field, plain(str(value))) for field, value in fields.items()])


def _enter(relay: str, member_name: str | None, enter: Enter) -> Membership:
    """Bring this home into a mesh; a new home comes to be by this."""
    home = find_home()
    with sessions.failures(home):
        url = relay_url(relay)
        sessions.check_no_daemon(home)
        with at_work(home, create=True) as device:
            return asyncio.run(_meet(device, url, member_name, enter))


async def _meet(device: Device, url: str, member_name: str | None, enter: Enter) -> Membership:
    async with RelayClient(url, device.secret, clock=device.clock, random=device.random) as client:
        called = member_name or sessions.user_name()
        try:
            return await enter(device, client, called)
        except Refused as refused:
            if refused.refusal is not Refusal.NAME_TAKEN or member_name is not None:
                raise
        # Two homes of one user on one machine: the name was ours to choose, so another one is, too.
        return await enter(device, client, f"{called}-{device.pubkey[: sessions.SUFFIX_CHARACTERS]}")


def _say_entered(membership: Membership, did: str, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "mesh": membership.mesh,
                "name": membership.mesh_name,
                "relay": membership.relay,
                "member": membership.member,
                "member_name": membership.member_name,
            }
        )
    else:
        said = f"{did} mesh {membership.mesh_name} at {membership.relay} as {membership.member_name}"
        console().print(plain(said))
