"""What a handler gets, and what a handler is."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec


class HookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an agent. A handler may get one again, under the same `event_id`, if it or its process failed."""

    event_id: str
    agent: str
    session_id: str
    event_type: str
    event_name: str  # the agent's own
    payload: dict[str, Any]
    received_at: int  # microseconds
    attempts: int  # this one included


Handler = Callable[[HookEvent], Awaitable[None]]
"""Does something about an event. Returning means that it is done; raising, that it is to be tried again."""


async def nothing(event: HookEvent) -> None:
    """The default handler: does nothing. The event is stored, and the history has it."""
