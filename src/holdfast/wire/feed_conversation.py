"""A connection to one relay for an author's documents: snapshots arrive on a WebSocket and are offered over HTTP.

They are offered over HTTP, because there a refusal has a Retry-After.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from holdfast.store.world import Clock, Random
from holdfast.wire import relay_socket
from holdfast.wire.client import Information, RelayClient, Said, SnapshotYes
from holdfast.wire.feed_frames import Frame
from holdfast.wire.feed_socket import FeedSocket
from holdfast.wire.network import Network
from holdfast.wire.transport import NetworkTransport


class FeedConversation:
    """A connection that is authenticated with the author's key."""

    def __init__(self, socket: FeedSocket, client: RelayClient) -> None:
        self._socket = socket
        self._client = client

    async def information(self) -> Information:
        """The relay's information document."""
        return await self._client.information()

    async def ask_state(self, author: str, kind: int) -> None:
        """Ask for the current snapshots (bootstrap)."""
        await self._socket.ask_state(author, kind)

    async def ask_changes(self, author: str, kind: int, since: int) -> None:
        """Ask for the snapshots accepted after a position, and for new ones (tail)."""
        await self._socket.ask_changes(author, kind, since)

    async def receive(self, most: int) -> list[Frame]:
        """The frames that have arrived, at least one; waits for it."""
        return await self._socket.receive(most)

    async def publish(self, events: Sequence[bytes]) -> list[Said]:
        """Offer snapshots; returns an answer for each."""
        return await self._client.publish_all(events, SnapshotYes)


@asynccontextmanager
async def conversing(
    relay: str, secret: bytes, *, network: Network, clock: Clock, random: Random
) -> AsyncIterator[FeedConversation]:
    """Connect to a relay and authenticate with a key."""
    transport = NetworkTransport(network)
    async with (
        relay_socket.opened(FeedSocket, relay, secret, network=network, clock=clock, random=random) as socket,
        RelayClient(relay, secret, clock=clock, random=random, transport=transport) as client,
    ):
        yield FeedConversation(socket, client)
