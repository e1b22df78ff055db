"""Message handlers of a client program: each message is handled once in effect, in order, and never lost by a failure.

The inbox drives them, not the event stream: a message stays unapplied until a handler has succeeded, so a crash repeats at
most the one under way. The daemon counts failures, and parks a message after the fifth.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from holdfast.device.ipc_documents import Message

if TYPE_CHECKING:
    from holdfast.device.client import Client

RETRY_WAIT_S = 0.1  # after a handler's first failure; doubles


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages a handler wants; never one that cannot be read yet."""

    topic: str | None = None
    sender: str | None = None  # a member's id: a name may change hands
    priority: str | None = None

    def fits(self, message: Message) -> bool:
        return (
            message.status == "stored"
            and self.topic in (None, message.topic)
            and self.sender in (None, message.sender)
            and self.priority in (None, message.priority)
        )


class Handlers:
    """The handlers of one client."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._handlers: list[tuple[Callable[[Message], object], Wanted]] = []
        self._after = 0  # every message up to this arrival is applied, parked, or wanted by no handler

    def add(self, handler: Callable[[Message], object], wanted: Wanted) -> None:
        self._handlers.append((handler, wanted))

    def work_off(self, *, from_start: bool = False) -> None:
        """Handle all unapplied messages of the inbox; `from_start` looks at old ones again, which may be readable now."""
        if from_start:
            self._after = 0
        while True:
            page = self._client.inbox(after=self._after, unapplied=True)
            for message in page.messages:
                if self._client.is_stopped:
                    return
                self._handle(message)
                self._after = message.arrival
            if page.next_after is None:
                return

    def _handle(self, message: Message) -> None:
        wanting = [handler for handler, wanted in self._handlers if wanted.fits(message)]
        while wanting and not _is_done_with(message):
            try:
                wanting[0](message)
            except Exception as error:  # a handler's failure must not end the others
                import structlog  # here, because its import costs every program time

                structlog.get_logger(__name__).warning("handler failed", message=message.id, error=repr(error))
                message = self._client.fail(message.id, f"{type(error).__name__}: {error}")
                if not _is_done_with(message):
                    time.sleep(RETRY_WAIT_S * 2 ** (message.handler_attempts - 1))
                if self._client.is_stopped:
                    return
            else:
                wanting.pop(0)  # not called again if the next handler fails
                if not wanting:
                    self._client.ack(message.id)


def _is_done_with(message: Message) -> bool:
    """Whether a message needs no handler any more: it was parked, or another program applied it."""
    return message.parked_at is not None or message.applied_at is not None
