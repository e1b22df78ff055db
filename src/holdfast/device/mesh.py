"""A home and its mesh: founding or joining one, and sessions in which the mesh is seen and administered.

home.json is written before the event that founds or joins a mesh is sent, and names that event. So a crash at any moment
leaves either nothing, or a home that the next command completes; after a refusal the home is in no mesh.
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
    """Whether a home is a member of the mesh that its home.json names."""

    NONE = "none"  # no mesh, or the relay refused
    UNFINISHED = "unfinished"  # asked for, and not answered yet
    MEMBER = "member"


STANDINGS = {
    None: Standing.NONE,  # the command died before the operation was written
    Status.PENDING: Standing.UNFINISHED,
    Status.INFLIGHT: Standing.UNFINISHED,
    Status.DONE: Standing.MEMBER,
    Status.DEAD: Standing.NONE,
    Status.ABORTED: Standing.NONE,
}


class NoMesh(Exception):
    """The home is in no mesh."""


class HasMesh(Exception):
    """The home is in a mesh already, or about to be; a home has only one."""

    def __init__(self, membership: Membership, standing: Standing) -> None:
        super().__init__(f"this home is in mesh {membership.mesh_name}")
        self.membership = membership
        self.standing = standing


class OtherRelay(Exception):
    """Another relay answers at the address of this home's relay."""

    def __init__(self, url: str, known: str, shown: str) -> None:
        super().__init__(f"{url} shows the key {shown}, not {known}")
        self.url = url
        self.known = known
        self.shown = shown


class InvalidName(ValueError):
    """A name that nobody can have."""


class NotThatOne(Exception):
    """No member or topic, or more than one, has the given name."""

    def __init__(self, what: str, name: str, found: int = 0) -> None:
        super().__init__(f"{found} {what}s are called {name}")
        self.what = what
        self.name = name
        self.found = found


class NotAllowed(Exception):
    """This member may not do something; the text says who may."""


def check_name(name: str, what: str) -> None:
    """Refuse a name of a mesh or member that no event can carry."""
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise InvalidName(
            f"{what} has 1 to {NAME_CHARACTERS_MAX} characters on one line and no space at either end"
        ) from None


def standing(device: Device) -> tuple[Membership | None, Standing]:
    """The mesh of a home, and whether it is a member of it."""
    membership = device.home.membership()
    if membership is None:
        return None, Standing.NONE
    founding = device.look(lambda tx: sending.called(tx, membership.client_message_id))
    return membership, STANDINGS[None if founding is None else founding.status]


async def found(
    device: Device, client: RelayClient, name: str, member_name: str, operator: bytes | None = None
) -> Membership:
    """Found a mesh with this device as first member and admin; `operator` is the secret of an operator who vouches."""
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
    """Complete what an earlier command began, if any; returns the mesh. Refuses a home that is a member already."""
    membership, before = standing(device)
    if membership is None or before is Standing.NONE:
        return None
    if before is Standing.MEMBER or membership.relay != client.url:
        raise HasMesh(membership, before)
    await _recognise(device, client, membership)
    await Publisher(device, client, membership.relay_pubkey).heal(membership.mesh)
    return membership if standing(device)[1] is Standing.MEMBER else None


def _same(membership: Membership, **asked: str) -> Membership:
    """The mesh that was completed, if it is the one asked for now; else refuses."""
    if any(getattr(membership, name) != value for name, value in asked.items()):
        raise HasMesh(membership, Standing.MEMBER)
    return membership


async def _recognise(device: Device, client: RelayClient, membership: Membership) -> None:
    """Refuse a relay that shows another key than when this home entered its mesh."""
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
    """A membership with the key that the relay shows now, which is trusted from then on. Raises if there is no relay."""
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
    """A device in its mesh, with a client of the relay; `mesh` is what the relay said last."""

    def __init__(
        self,
        device: Device,
        client: RelayClient,
        publisher: Publisher,
        membership: Membership,
        seen: Mesh | None = None,
    ) -> None:
        """`seen` is the mesh in the directory, if this client fetched it before."""
        self.device = device
        self.client = client
        self.publisher = publisher
        self.membership = membership
        self.mesh = seen or Mesh(mesh=membership.mesh, name=membership.mesh_name, members=(), topics=())

    async def refresh(self) -> Mesh:
        """Fetch the mesh from the relay, and keep it in the directory."""
        found = await self.client.mesh(self.membership.mesh)
        if found is self.mesh:  # the relay said that nothing has changed
            return found
        if self.device.look(directory.load) != directory.seen_in(found):  # the daemon needs it offline
            self.device.do(lambda tx: directory.replace(tx, found))
        self.mesh = found
        return found

    async def ask(self, action: Action) -> Yes:
        """Have the relay carry out an action in this mesh, then fetch the mesh."""
        yes = await self.publisher.publish(self.membership.mesh, action)
        await self.refresh()
        return yes

    @property
    def me(self) -> Member:
        """This device's member, as the relay sees it."""
        return self.member(self.membership.member)

    def member(self, member: str) -> Member:
        """The member with this id."""
        for found in self.mesh.members:
            if found.member == member:
                return found
        raise NotThatOne("member", member)

    def find(self, who: str) -> Member:
        """The one member with this name, id, npub or key in hex; active members come before revoked ones."""
        named = [member for member in self.mesh.members if who in _names(member) or who.lower() in _keys(member)]
        active = [member for member in named if member.is_active]
        candidates = active or named
        if len(candidates) != 1:
            raise NotThatOne("member", who, len(candidates))
        return candidates[0]

    async def invite(self, role: Role, expires_at: int) -> Invitation:
        """Invite one member; the invitation is good once, until it expires (microseconds)."""
        secret = self.device.random(keys.SECRET_BYTES)
        invitation = Invitation(relay=self.client.url, mesh=self.mesh.mesh, mesh_name=self.mesh.name, secret=secret)
        await self.ask(Invite(key=invitation.key, expires_at=expires_at, role=role))
        return invitation

    async def leave(self) -> None:
        """Leave the mesh; the relay shows this device nothing more of it."""
        action = RevokeMember(member=self.membership.member)
        await self.publisher.publish(self.membership.mesh, action)
        self.mesh = Mesh(mesh=self.mesh.mesh, name=self.mesh.name, members=(), topics=())

    def renamed(self, name: str) -> None:
        """Note this device's own new name."""
        self.membership = msgspec.structs.replace(self.membership, member_name=name)
        self.device.home.keep(self.membership)


@asynccontextmanager
async def in_session(device: Device) -> AsyncIterator[Session]:
    """A session without a daemon: agrees with the relay on what was sent, offers what waits, and fetches the mesh."""
    membership, before = standing(device)
    if membership is None or before is Standing.NONE:
        raise NoMesh
    async with RelayClient(membership.relay, device.secret, clock=device.clock, random=device.random) as client:
        publisher = Publisher(device, client, membership.relay_pubkey)
        session = Session(device, client, publisher, membership)
        await _recognise(device, client, membership)
        await own_key.settle(device, client, publisher, membership.mesh)
        if before is Standing.UNFINISHED:  # until this is answered, the relay does not know the member
            await publisher.heal(membership.mesh)
        if standing(device)[1] is not Standing.MEMBER:
            raise NoMesh
        await _agree(device, membership)
        await publisher.heal(membership.mesh)
        await session.refresh()
        yield session


async def _agree(device: Device, membership: Membership) -> None:
    """Reconcile the log with the relay before anything is signed. Opens the queue only to ask; no message is taken."""
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
