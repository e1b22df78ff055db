"""`holdfast member`: who is in the mesh."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from holdfast.cli import session as sessions
from holdfast.cli.output import AsJson, console, plain, print_json, print_list, print_table, show_time
from holdfast.device.ipc_administration import RenameArguments, SetRoleArguments, WhoArguments
from holdfast.protocol import keys
from holdfast.protocol.action import Role

app = typer.Typer(help="Who is in the mesh.", no_args_is_help=True)

_ROTATION_PUT_OFF = (
    "The new key is written down. The daemon, or the next command, finds out whether the relay has taken it; until then "
    "the old key is used."
)

Who = Annotated[str, typer.Argument(metavar="WHO", help="A name, a member id, an npub or a key in hex.")]


@app.command("list")
def list_members(
    all_of_them: Annotated[bool, typer.Option("--all", help="Show those who were revoked, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """The members of this home's mesh."""
    found = sessions.administer("list_members", as_json=as_json)
    members = [member for member in found if all_of_them or member["status"] == "active"]
    if as_json:
        print_list([_fields(member, with_status=all_of_them) for member in members])
    else:
        print_table(("name", "role", "member", "key"), [_row(member) for member in members])


@app.command()
def revoke(who: Who, as_json: AsJson = False) -> None:
    """Put a member out of the mesh, at once and for good; the topics it was in get new keys. Revoke yourself to leave."""
    gone = sessions.administer("revoke", WhoArguments(who=who), as_json=as_json)
    is_me = gone.pop("is_me")
    if as_json:
        print_json(gone)
    else:
        console().print(f"{plain(gone['name'])} is revoked" + (": this home has left its mesh" if is_me else ""))


@app.command()
def rename(
    name: Annotated[str, typer.Argument(help="The new name.")],
    who: Annotated[
        str | None, typer.Option("--of", metavar="WHO", help="Another member than yourself; takes an admin.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a member another name; its id and key stay."""
    renamed = sessions.administer("rename", RenameArguments(name=name, who=who), as_json=as_json)
    was = renamed.pop("was")
    if as_json:
        print_json(renamed)
    else:
        console().print(f"{plain(was)} is now {name}")


@app.command("set-role")
def set_role(
    who: Who, role: Annotated[Role, typer.Argument(help="What the member may do from now on.")], as_json: AsJson = False
) -> None:
    """Make a member an admin, who lets others in and puts them out, or a plain member again; takes an admin."""
    changed = sessions.administer("set_role", SetRoleArguments(who=who, role=role), as_json=as_json)
    if as_json:
        print_json(changed)
    else:
        console().print(f"{plain(changed['name'])} has the role {changed['role']} now")


@app.command("rotate-key")
def rotate_key(as_json: AsJson = False) -> None:
    """Give this home's member a new key; its id stays, and the old key opens what was sealed to it for as long as that may wait.

    Back the home up afterwards: one that was backed up before has the old key only, with which nobody is let in again.
    """
    rotated = sessions.administer("rotate_key", as_json=as_json, if_put_off=_ROTATION_PUT_OFF)
    if as_json:
        print_json(rotated)
        return
    console().print(
        f"this member's key is now {rotated['npub']}; the old one is kept until {show_time(rotated['kept_until'])}"
    )
    console().print("Back this home up again: an older backup has the old key only.")


@app.command()
def block(who: Who, as_json: AsJson = False) -> None:
    """Take nothing more from a member; what waits already still comes. Senders are not told, but can find out."""
    blocked = sessions.administer("block", WhoArguments(who=who), as_json=as_json)
    if as_json:
        print_json(blocked)
    else:
        console().print(f"{plain(blocked['name'])} is blocked: what it sends from now on does not come here")


@app.command()
def unblock(who: Who, as_json: AsJson = False) -> None:
    """Hear a member again; what it sent meanwhile does not come."""
    heard = sessions.administer("unblock", WhoArguments(who=who), as_json=as_json)
    if as_json:
        print_json(heard)
    else:
        console().print(f"{plain(heard['name'])} is heard again")


def _fields(member: Mapping[str, Any], *, with_status: bool) -> dict[str, Any]:
    shown = ("member", "pubkey", "name", "role", *(("status",) if with_status else ()))
    return {**{name: member[name] for name in shown}, "npub": _npub(member)}


def _row(member: Mapping[str, Any]) -> tuple[str, ...]:
    marks = " (you)" if member["is_me"] else "" if member["status"] == "active" else " (revoked)"
    return plain(member["name"]) + marks, plain(member["role"]), plain(member["member"]), _npub(member) or ""


def _npub(member: Mapping[str, Any]) -> str | None:
    return None if member["pubkey"] is None else keys.npub(member["pubkey"])
