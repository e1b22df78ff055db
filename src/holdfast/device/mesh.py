"""A home and its mesh: how it comes to be in one, and what it sees of it.

home.json is written before the event that founds or joins a mesh leaves, and names that event. So a crash at any moment
leaves either nothing, or a home that the next command finishes; what the relay refused leaves no mesh behind.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

import msgspec

from holdfast.device import directory, own_key, sending
from holdfast.device.device import Device
from holdfast.device.home import Membership
from holdfast.device.invitation import Invitation
from holdfast.device.operations import Facts
from holdfast.device.publish import Publisher, PutOff
from holdfast.device.reconcile import reconcile
from holdfast.protocol import administration, keys
from holdfast.protocol.action import NAME_CHARACTERS_MAX, Action, CreateMesh, Invite, Name, RevokeMember, Role
from holdfast.protocol.outbox import Status
from holdfast.protocol.refusal import Refused
from holdfast.wire import relay_socket
from holdfast.wire.client import Member, Mesh, RelayClient, Unreachable, Yes
from holdfast.wire.network import SystemNetwork
from holdfast.wire.relay_socket import SocketClosed


class Standing(StrEnum):
    """How far a home has come with the mesh that its home.json names."""

    NONE = "none"  # no mesh, or one that came to nothing
    UNFINISHED = "unfinished"  # asked for, not answered
    MEMBER = "member"


STANDINGS = {
    None: Standing.NONE,  # died before it was asked for
    Status.PENDING: Standing.UNFINISHED,
    Status.INFLIGHT: Standing.UNFINISHED,
    Status.DONE: Standing.MEMBER,
    Status.DEAD: Standing.NONE,
    Status.ABORTED: Standing.NONE,
}


class NoMesh(Exception):
    """The home is in no mesh."""


class HasMesh(Exception):
    """The home is in a mesh already, or about to be, and a home has one only."""

    def __init__(self, membership: Membership, standing: Standing) -> None:
        super().__init__(f"this home is in mesh {membership.mesh_name}")
        self.membership = membership
        self.standing = standing


class OtherRelay(Exception):
    """Another relay answers under the address of this home's."""

    def __init__(self, url: str, known: str, shown: str) -> None:
        super().__init__(f"{url} shows the key {shown}, not {known}")
        self.url = url
        self.known = known
        self.shown = shown


class InvalidName(ValueError):
    """A name that nobody can have."""


class NotThatOne(Exception):
    """Nothing, or more than one, goes by the name that was given."""

    def __init__(self, what: str, name: str, found: int = 0) -> None:
        super().__init__(f"{found} {what}s are called {name}")
        self.what = what
        self.name = name
        self.found = found


class NotAllowed(Exception):
    """Something that this member may not do; says who may."""


def check_name(name: str, what: str) -> None:
    """Refuse a name for people that no event could carry."""
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise InvalidName(
            f"{what} has 1 to {NAME_CHARACTERS_MAX} characters on one line and no space at either end"
        ) from None


def standing(device: Device) -> tuple[Membership | None, Standing]:
    """The mesh of a home, and how far it has come with it."""
    membership = device.home.membership()
    if membership is None:
        return None, Standing.NONE
    founding = device.look(lambda tx: sending.called(tx, membership.client_message_id))
    return membership, STANDINGS[None if founding is None else founding.status]


async def found(
    device: Device, client: RelayClient, name: str, member_name: str, operator: bytes | None = None
) -> Membership:
    """Make a new mesh with this device as its first member and admin; the relay's `operator` may vouch for it."""
    check_name(name, "a mesh's name")
    check_name(member_name, "a member's name")
    before = await _finished(device, client)
    if before is not None:
        return _same(before, mesh_name=name)
    membership = await _new_membership(device, client, device.mint(), name, member_name)
    action = CreateMesh(name=name, member=membership.member, member_name=member_name, key=device.pubkey)
    if operator is not None:
        action = administration.vouched(operator, membership.mesh, action, device.random(keys.AUX_BYTES))
    await _enter(device, client, membership, action)
    return membership


async def join(device: Device, client: RelayClient, invitation: Invitation, member_name: str) -> Membership:
    """Become a member of the mesh that an invitation is for."""
    check_name(member_name, "a member's name")
    before = await _finished(device, client)
    if before is not None:
        return _same(before, mesh=invitation.mesh)
    membership = await _new_membership(device, client, invitation.mesh, invitation.mesh_name, member_name)
    action = administration.join(
        invitation.secret, invitation.mesh, membership.member, member_name, device.pubkey, device.random(keys.AUX_BYTES)
    )
    await _enter(device, client, membership, action)
    return membership


async def _finished(device: Device, client: RelayClient) -> Membership | None:
    """The mesh that this very run has finished joining for a command that died; refuses a home that was in one."""
    membership, before = standing(device)
    if membership is None or before is Standing.NONE:
        return None
    if before is Standing.MEMBER or membership.relay != client.url:
        raise HasMesh(membership, before)
    await _recognise(device, client, membership)
    await Publisher(device, client, membership.relay_pubkey).heal(membership.mesh)
    return membership if standing(device)[1] is Standing.MEMBER else None


def _same(membership: Membership, **asked: str) -> Membership:
    """The mesh that was finished, if it is the one asked for now."""
    if any(getattr(membership, name) != value for name, value in asked.items()):
        raise HasMesh(membership, Standing.MEMBER)
    return membership


async def _recognise(device: Device, client: RelayClient, membership: Membership) -> None:
    """Refuse a relay that is not the one with which this home's membership began."""
    try:
        shown = (await client.information()).pubkey
    except Unreachable as fault:
        if not device.look(lambda tx: sending.waiting(tx, sending.ADMIN, membership.mesh)):
            raise
        raise PutOff(client.url, fault.fault, fault.detail, kept=False) from fault
    if shown != membership.relay_pubkey:
        raise OtherRelay(client.url, membership.relay_pubkey, shown)


async def _new_membership(
    device: Device, client: RelayClient, mesh: str, mesh_name: str, member_name: str
) -> Membership:
    """The key that the relay shows now is believed, and from then on no other. No relay there: nothing is written."""
    return Membership(
        relay=client.url,
        relay_pubkey=(await client.information()).pubkey,
        mesh=mesh,
        mesh_name=mesh_name,
        member=device.mint(),
        member_name=member_name,
        client_message_id=device.mint(),
    )


async def _enter(device: Device, client: RelayClient, membership: Membership, action: Action) -> Yes:
    publisher = Publisher(device, client, membership.relay_pubkey)
    device.home.keep(membership)
    try:
        return await publisher.publish(membership.mesh, action, client_message_id=membership.client_message_id)
    except Refused:
        device.home.forget()
        raise


class Session:
    """A device in its mesh, with the relay at hand: what it knows of the mesh is what the relay said last."""

    def __init__(
        self,
        device: Device,
        client: RelayClient,
        publisher: Publisher,
        membership: Membership,
        seen: Mesh | None = None,
    ) -> None:
        """`seen` is the mesh as it is in the directory, if it was seen with this client before."""
        self.device = device
        self.client = client
        self.publisher = publisher
        self.membership = membership
        self.mesh = seen or Mesh(mesh=membership.mesh, name=membership.mesh_name, members=(), topics=())

    async def refresh(self) -> Mesh:
        """Ask the relay for the mesh as it is now."""
        found = await self.client.mesh(self.membership.mesh)
        if found is self.mesh:  # nothing has changed
            return found
        if self.device.look(directory.load) != directory.seen_in(found):  # what is seen here is known offline, too
            self.device.do(lambda tx: directory.replace(tx, found))
        self.mesh = found
        return found

    async def ask(self, action: Action) -> Yes:
        """Have the relay do something in this mesh, and see the mesh as it is after that."""
        yes = await self.publisher.publish(self.membership.mesh, action)
        await self.refresh()
        return yes

    @property
    def me(self) -> Member:
        """This device's member, as the relay sees it."""
        return self.member(self.membership.member)

    def member(self, member: str) -> Member:
        """The member of an id."""
        for found in self.mesh.members:
            if found.member == member:
                return found
        raise NotThatOne("member", member)

    def find(self, who: str) -> Member:
        """The one member whom a person means by a name, a member id, an npub or a key in hex; rather an active one."""
        named = [member for member in self.mesh.members if who in _names(member) or who.lower() in _keys(member)]
        active = [member for member in named if member.is_active]
        candidates = active or named
        if len(candidates) != 1:
            raise NotThatOne("member", who, len(candidates))
        return candidates[0]

    async def invite(self, role: Role, expires_at: int) -> Invitation:
        """Let one more in, once, until the invitation expires (microseconds)."""
        secret = self.device.random(keys.SECRET_BYTES)
        invitation = Invitation(relay=self.client.url, mesh=self.mesh.mesh, mesh_name=self.mesh.name, secret=secret)
        await self.ask(Invite(key=invitation.key, expires_at=expires_at, role=role))
        return invitation

    async def leave(self) -> None:
        """Be a member no longer; the relay shows this device nothing more of the mesh."""
        action = RevokeMember(member=self.membership.member)
        await self.publisher.publish(self.membership.mesh, action)
        self.mesh = Mesh(mesh=self.mesh.mesh, name=self.mesh.name, members=(), topics=())

    def renamed(self, name: str) -> None:
        """Note this device's own new name."""
        self.membership = msgspec.structs.replace(self.membership, member_name=name)
        self.device.home.keep(self.membership)


@asynccontextmanager
async def in_session(device: Device) -> AsyncIterator[Session]:
    """Meet the relay of a home's mesh: both agree on what was sent, what waits is offered, and the mesh is looked at."""
    membership, before = standing(device)
    if membership is None or before is Standing.NONE:
        raise NoMesh
    async with RelayClient(membership.relay, device.secret, clock=device.clock, random=device.random) as client:
        publisher = Publisher(device, client, membership.relay_pubkey)
        session = Session(device, client, publisher, membership)
        await _recognise(device, client, membership)
        await own_key.settle(device, client, publisher, membership.mesh)
        if before is Standing.UNFINISHED:  # nobody to the relay until it has answered
            await publisher.heal(membership.mesh)
        if standing(device)[1] is not Standing.MEMBER:
            raise NoMesh
        await _agree(device, membership)
        await publisher.heal(membership.mesh)
        await session.refresh()
        yield session


async def _agree(device: Device, membership: Membership) -> None:
    """Before anything is signed: have the relay say how far it knows this device. Its queue is looked at, and nothing is taken."""
    network, facts = SystemNetwork(), Facts(mesh=membership.mesh, member=membership.member)
    try:
        async with relay_socket.connected(
            membership.relay, device.secret, network=network, clock=device.clock, random=device.random
        ) as socket:
            status = await socket.open_queue(membership.mesh, device.epoch)
    except SocketClosed as closed:
        if closed.refusal is not None:
            raise Refused(closed.refusal, closed.detail) from closed
        raise Unreachable(closed.url, closed.fault, closed.detail) from closed
    await reconcile(device, facts, status)


def _names(member: Member) -> set[str]:
    return {member.member, member.name}


def _keys(member: Member) -> set[str]:
    return set() if member.pubkey is None else {member.pubkey, keys.npub(member.pubkey)}
