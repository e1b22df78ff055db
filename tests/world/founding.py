"""How a world begins, in peace: relays serve, meshes are founded and joined, a topic gets its key, authors their homes and relays."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from holdfast.device import mesh as meshes
from holdfast.device.daemon import LinkState
from holdfast.device.device import Device
from holdfast.device.invitation import Invitation
from holdfast.device.mesh import Session
from holdfast.device.publish import Publisher
from holdfast.protocol.action import Role
from holdfast.protocol.schedule import HOUR
from holdfast.wire.client import RelayClient
from holdfast.wire.transport import NetworkTransport
from tests.world.machine import SKEW_S, HomeMachine
from tests.world.network import MachineNetwork
from tests.world.places import Mesh

if TYPE_CHECKING:
    from tests.world.world import World

TOPIC = "news"
PEACE_S = 300.0  # at most, until everybody has come together


async def begin(world: "World") -> None:
    """Have everything there that people need."""
    for relay in world.relays.values():
        relay.is_wanted = True
        relay.start()
    await world.until(lambda: len(world.internet.places) == len(world.relays), PEACE_S, "relays serve")
    await asyncio.sleep(2 * SKEW_S + 1)  # a request that is dated before its relay began is to be signed anew
    for mesh in world.places.meshes:
        await _gather(world, mesh)
    for home in world.homes.values():
        home.is_wanted = True
        home.start()
    await world.until(lambda: is_connected(world), PEACE_S, "daemons are connected")
    for mesh in world.places.meshes:
        await _have_topic(world, mesh)
    await world.until(lambda: _has_keys(world), PEACE_S, "everybody has the topic's key")
    for mesh in world.places.meshes:
        await _have_author(world, mesh)
    for home in world.homes.values():
        for relay in home.followed[1:]:
            await world.apps[home.name].insist("POST", "/v1/feed/relays", {"relay": relay.url})
    for machine in world.machines:
        machine.back_up()  # everybody has something to go back to


def is_connected(world: "World") -> bool:
    """Whether every daemon that may run does, and has its relay."""
    return all(
        home.is_up and home.daemon is not None and home.daemon.state.link is LinkState.CONNECTED
        for home in world.homes.values()
        if home.ended is None
    )


async def _gather(world: "World", mesh: Mesh) -> None:
    founder, *others = (world.homes[name] for name in mesh.members)
    invitations = asyncio.Queue[Invitation]()
    await _once(world, founder, partial(_found, founder, len(others), invitations))
    for home in others:
        await _once(world, home, partial(_join, home, invitations.get_nowait()))


async def _have_topic(world: "World", mesh: Mesh) -> None:
    await world.apps[mesh.founder].insist("POST", "/v1/administration/create_topic", {"topic": TOPIC})
    for name in mesh.members:
        await world.apps[name].insist("POST", "/v1/topic/subscribe", {"topic": TOPIC})


async def _have_author(world: "World", mesh: Mesh) -> None:
    """One author, in all homes of a mesh."""
    first = world.apps[mesh.founder]
    await first.insist("POST", "/v1/feed/init", {})
    for name in mesh.others:
        await first.insist("POST", "/v1/feed/share", {"member": name, "client_message_id": f"author-for-{name}"})
        await world.apps[name].insist("POST", "/v1/feed/init", {"from": mesh.founder})


async def _once(world: "World", home: HomeMachine, work: Callable[[Device, MachineNetwork], Awaitable[None]]) -> None:
    home.found(work)
    await world.until(lambda: not home.is_up, PEACE_S, f"{home.name} is in the mesh")


def _client(home: HomeMachine, device: Device, network: MachineNetwork) -> RelayClient:
    return RelayClient(
        home.relay.url,
        device.secret,
        clock=device.clock,
        random=device.random,
        transport=NetworkTransport(network),
    )


async def _found(
    home: HomeMachine, others: int, invitations: "asyncio.Queue[Invitation]", device: Device, network: MachineNetwork
) -> None:
    async with _client(home, device, network) as client:
        membership = await meshes.found(device, client, "friends", home.name)
        session = Session(device, client, Publisher(device, client, membership.relay_pubkey), membership)
        for _ in range(others):
            invitations.put_nowait(await session.invite(Role.MEMBER, device.clock() + HOUR))


async def _join(home: HomeMachine, invitation: Invitation, device: Device, network: MachineNetwork) -> None:
    async with _client(home, device, network) as client:
        await meshes.join(device, client, invitation, home.name)


def _has_keys(world: "World") -> bool:
    return all(
        home.daemon is not None
        and home.daemon.device.look(lambda tx: tx.rows("SELECT count(*) FROM topic_key")) > [(0,)]
        for home in world.homes.values()
    )
