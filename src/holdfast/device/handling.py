"""Handlers of messages in a program of its own: each message once in effect, in order, and never lost by a failure.

What drives them is the inbox, not the stream of events: a message stays there until somebody has acted on it, so a crash
at any moment repeats at most the one under way. The daemon counts failures, and parks a message after the fifth.
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
        self._after = 0  # what arrived up to here was seen: applied, parked, or wanted by nobody

    def add(self, handler: Callable[[Message], object], wanted: Wanted) -> None:
        self._handlers.append((handler, wanted))

    def work_off(self, *, from_start: bool = False) -> None:
        """Handle everything in the inbox that nobody has acted on; from its start when something old can be read now."""
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
            except Exception as error:  # whatever a handler raises is its failure, and not the end of the others
                import structlog  # here, because every program would pay for it

                structlog.get_logger(__name__).warning("handler failed", message=message.id, error=repr(error))
                message = self._client.fail(message.id, f"{type(error).__name__}: {error}")
                if not _is_done_with(message):
                    time.sleep(RETRY_WAIT_S * 2 ** (message.handler_attempts - 1))
                if self._client.is_stopped:
                    return
            else:
                wanting.pop(0)  # what has succeeded is not called again for the failure of the next
                if not wanting:
                    self._client.ack(message.id)


def _is_done_with(message: Message) -> bool:
    """Whether nobody is to act on it any more: it was parked, or another program was quicker."""
    return message.parked_at is not None or message.applied_at is not None
