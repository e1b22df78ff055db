"""Homes with their daemons in this process, in one mesh of a relay that runs: what people do with them, and what they see."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.cli.check import inspect
from holdfast.device import inbox, mesh, send
from holdfast.device.daemon import Daemon, LinkState
from holdfast.device.device import Device, at_work
from holdfast.device.home import Home
from holdfast.device.inbox import Message
from holdfast.device.mesh import Session
from holdfast.device.publish import Publisher
from holdfast.protocol.action import Role
from holdfast.protocol.schedule import HOUR
from holdfast.store.engine import Row
from holdfast.wire.client import RelayClient
from holdfast.wire.network import Network
from holdfast.wire.transport import NetworkTransport

WAIT_S = 120.0  # for what must happen
LOOK_S = 0.02


class Friend:
    """Somebody with a home and a daemon."""

    def __init__(self, device: Device, **options: Any) -> None:
        self.device = device
        self.daemon = Daemon(device, **options)
        self.running = asyncio.create_task(self.daemon.run())

    async def send(self, to: str, message: str, **more: Any) -> str:
        """Have a message accepted; returns its id."""
        request, daemon = send.Send(to=to, message=message, **more), self.daemon
        device = self.device
        answer = await daemon.do(
            lambda tx: send.send(tx, daemon.facts, daemon.directory, device.clock(), device.random, request)
        )
        assert answer.refusal is None, answer
        return str(answer.body["client_message_id"])

    @property
    def is_connected(self) -> bool:
        return self.daemon.state.link is LinkState.CONNECTED

    def messages(self) -> list[Message]:
        return self.device.look(lambda tx: inbox.page(tx, limit=500))

    def bodies(self) -> list[str]:
        return [(message.body or b"?").decode() for message in self.messages()]

    def rows(self, statement: str) -> list[Row]:
        return self.device.look(lambda tx: tx.rows(statement))

    def statuses(self) -> set[str]:
        """Of the messages that were sent."""
        found = self.rows("SELECT DISTINCT status FROM operation_log WHERE destination_kind IN ('dm', 'topic')")
        return {status for (status,) in found}

    def receipted(self) -> int:
        """How many sends are proven to have arrived."""
        ((number,),) = self.rows("SELECT count(*) FROM send_receipt WHERE status = 'stored'")
        return int(number)

    async def stop(self) -> None:
        self.daemon.stop()
        await asyncio.wait([self.running], timeout=WAIT_S)


async def until(*conditions: Callable[[], bool]) -> None:
    """Wait for each in its turn."""
    for condition in conditions:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(LOOK_S)


async def gather_in_mesh(url: str, homes: Iterable[Home], network: Network | None = None) -> None:
    """Make a mesh of these homes; each member is called as its home's directory is."""
    first, *others = homes
    with at_work(first, create=True) as founder:
        async with _client(url, founder, network) as client:
            membership = await mesh.found(founder, client, "friends", first.path.name)
            session = Session(founder, client, Publisher(founder, client, membership.relay_pubkey), membership)
            for home in others:
                invitation = await session.invite(Role.MEMBER, founder.clock() + HOUR)
                with at_work(home, create=True) as device:
                    async with _client(url, device, network) as other:
                        await mesh.join(device, other, invitation, home.path.name)
            await session.refresh()


def _client(url: str, device: Device, network: Network | None) -> RelayClient:
    return RelayClient(url, device.secret, transport=None if network is None else NetworkTransport(network))


@asynccontextmanager
async def company(url: str, place: Path, *names: str) -> AsyncIterator[list[Friend]]:
    """Daemons of one mesh that are connected and have seen it; every rule holds in their homes when the block is over."""
    homes = [Home(place / name) for name in names]
    await gather_in_mesh(url, homes)
    async with AsyncExitStack() as stack:
        friends = [await stack.enter_async_context(at_home(home)) for home in homes]
        await until(*(lambda friend=friend: friend.is_connected and friend.daemon.sightings > 0 for friend in friends))
        yield friends
    for home in homes:
        assert inspect(home.database) == ("device", [])


@asynccontextmanager
async def at_home(home: Home, **options: Any) -> AsyncIterator[Friend]:
    """A daemon that runs while the block does."""
    with at_work(home, threaded=True) as device:
        friend = Friend(device, **options)
        try:
            yield friend
        finally:
            await friend.stop()
        if not friend.running.cancelled() and friend.running.exception() is None:
            friend.running.result()
