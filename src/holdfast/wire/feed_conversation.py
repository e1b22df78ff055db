"""A conversation with one relay about an author's documents: a WebSocket on which they come, and HTTP on which they are offered.

HTTP, because there a refusal says when to come back.
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
    """A connection that has shown the author's key."""

    def __init__(self, socket: FeedSocket, client: RelayClient) -> None:
        self._socket = socket
        self._client = client

    async def information(self) -> Information:
        """Who the relay is."""
        return await self._client.information()

    async def ask_state(self, author: str, kind: int) -> None:
        """Ask for what is current."""
        await self._socket.ask_state(author, kind)

    async def ask_changes(self, author: str, kind: int, since: int) -> None:
        """Ask for what was accepted behind a position, and for what follows."""
        await self._socket.ask_changes(author, kind, since)

    async def receive(self, most: int) -> list[Frame]:
        """What has come, at least one frame."""
        return await self._socket.receive(most)

    async def publish(self, events: Sequence[bytes]) -> list[Said]:
        """Offer snapshots; an answer each."""
        return await self._client.publish_all(events, SnapshotYes)


@asynccontextmanager
async def conversing(
    relay: str, secret: bytes, *, network: Network, clock: Clock, random: Random
) -> AsyncIterator[FeedConversation]:
    """Connect to a relay as the holder of a key."""
    transport = NetworkTransport(network)
    async with (
        relay_socket.opened(FeedSocket, relay, secret, network=network, clock=clock, random=random) as socket,
        RelayClient(relay, secret, clock=clock, random=random, transport=transport) as client,
    ):
        yield FeedConversation(socket, client)
