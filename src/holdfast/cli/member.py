"""`holdfast member`: who is in the mesh."""

from typing import Annotated, Any

import typer

from holdfast.cli import session as sessions
from holdfast.cli.output import AsJson, console, print_json, print_table
from holdfast.cli.session import plain
from holdfast.device.mesh import Session, check_name
from holdfast.protocol import keys
from holdfast.protocol.action import RenameMember, RevokeMember
from holdfast.wire.client import Member

app = typer.Typer(help="Who is in the mesh.", no_args_is_help=True)

Who = Annotated[str, typer.Argument(metavar="WHO", help="A name, a member id, an npub or a key in hex.")]


@app.command("list")
def list_members(
    all_of_them: Annotated[bool, typer.Option("--all", help="Show those who were revoked, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """The members of this home's mesh."""

    async def work(session: Session) -> None:
        members = [member for member in session.mesh.members if all_of_them or member.is_active]
        if as_json:
            sessions.print_list([_fields(member, with_status=all_of_them) for member in members])
            return
        print_table(("name", "role", "member", "key"), [_row(session, member) for member in members])

    sessions.in_mesh(work, as_json=as_json)


@app.command()
def revoke(who: Who, as_json: AsJson = False) -> None:
    """Put a member out of the mesh, at once and for good; the topics it was in get new keys."""

    async def work(session: Session) -> None:
        member = session.find(who)
        is_me = member.member == session.membership.member
        if is_me:
            await session.leave()
        elif member.is_active:
            await session.ask(RevokeMember(member=member.member))
        if as_json:
            print_json({"member": member.member, "name": member.name, "status": "revoked"})
        else:
            console().print(f"{plain(member.name)} is revoked" + (": this home has left its mesh" if is_me else ""))

    sessions.in_mesh(work, as_json=as_json)


@app.command()
def rename(
    name: Annotated[str, typer.Argument(help="The new name.")],
    who: Annotated[
        str | None, typer.Option("--of", metavar="WHO", help="Another member than yourself; takes an admin.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a member another name; its id and key stay."""

    async def work(session: Session) -> None:
        check_name(name, "a member's name")
        member = session.me if who is None else session.find(who)
        if member.name != name:
            await session.ask(RenameMember(member=member.member, name=name))
        if member.member == session.membership.member:
            session.renamed(name)
        if as_json:
            print_json({"member": member.member, "name": name})
        else:
            console().print(f"{plain(member.name)} is now {name}")

    sessions.in_mesh(work, as_json=as_json)


def _fields(member: Member, *, with_status: bool) -> dict[str, Any]:
    fields = {"member": member.member, "pubkey": member.pubkey, "name": member.name, "role": member.role}
    return {**fields, "status": member.status} if with_status else fields


def _row(session: Session, member: Member) -> tuple[str, ...]:
    marks = " (you)" if member.member == session.membership.member else "" if member.is_active else " (revoked)"
    npub = "" if member.pubkey is None else keys.npub(member.pubkey)
    return plain(member.name) + marks, plain(member.role), plain(member.member), npub
