"""A relay that says on its WebSocket what a test wrote down for it, and keeps what it was told."""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

CHALLENGE = "c0ffee"
LOG_ID = "0a" * 16

Script = Callable[["Connection"], Awaitable[None]]


class Connection:
    """The relay's end of one WebSocket."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.heard: list[Any] = []

    async def say(self, *frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def hear(self) -> Any:
        self.heard.append(json.loads(await self.socket.recv()))
        return self.heard[-1]

    async def authenticate(self) -> Any:
        """Challenge, and believe whoever answers; returns the event."""
        await self.say("AUTH", CHALLENGE)
        _, event = await self.hear()
        await self.say("OK", event["id"], True, "")
        return event

    async def open_queue(self, **status: Any) -> str:
        """Say how the queue stands that is asked for; returns the name that its frames have."""
        _, sub, _ = await self.hear()
        told = {"pending_count": 0, "log_id": LOG_ID, "seq": 0, "highest_sequence": None, "forks": []}
        await self.say("QUEUE", sub, "STATUS", {**told, **status})
        return str(sub)


@contextlib.asynccontextmanager
async def scripted(*scripts: Script) -> AsyncIterator[str]:
    """The address of a relay whose connections follow these scripts, one after another; then the last one again."""
    following = list(scripts)

    async def follow(socket: ServerConnection) -> None:
        script = following.pop(0) if len(following) > 1 else following[0]
        with contextlib.suppress(ConnectionClosed):
            await script(Connection(socket))

    async with serve(follow, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"http://127.0.0.1:{port}"


async def for_ever(connection: Connection) -> None:
    """Keep the connection open, as long as the other end wants it, and say no more."""
    await connection.socket.wait_closed()
