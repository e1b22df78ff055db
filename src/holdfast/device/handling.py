"""Message handlers of a client program: each message is handled once in effect, in order, and never lost by a failure.

The inbox drives them, not the event stream: a message stays unapplied until a handler has succeeded, so a crash repeats at
most the one under way. The daemon counts failures, and parks a message after the fifth. What became of a message is told
to the daemon until it answers: a handler that has acted is not called again because the daemon was away or busy.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.device.ipc_documents import Message
from holdfast.device.ipc_link import DaemonLost, NoDaemon, RequestRefused
from holdfast.protocol.refusal import REFUSALS

if TYPE_CHECKING:
    from holdfast.device.client import Client

RETRY_WAIT_S = 0.1  # after a handler's first failure; doubles
ERROR_CHARACTERS_MAX = 500  # as many as the daemon keeps
TELL_WAIT_S = 0.5  # before the daemon is told again what became of a message; doubles up to the maximum
TELL_WAIT_MAX_S = 5.0
STOP_POLL_S = 0.1  # between two looks whether the client was stopped

T = TypeVar("T")


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
                warn("handler failed", message=message.id, error=repr(error))
                fail = partial(self._client.fail, message.id, _told(error))
                message = self._tell(fail) or message
                if not _is_done_with(message):
                    pause(self._client, RETRY_WAIT_S * 2 ** (message.handler_attempts - 1))
                if self._client.is_stopped:
                    return
            else:
                wanting.pop(0)  # not called again if the next handler fails
                if not wanting:
                    self._tell(partial(self._client.ack, message.id))

    def _tell(self, request: Callable[[], T]) -> T | None:
        """Tell the daemon what became of a message.

        An acknowledgement whose answer was lost is taken once. A failure may count twice then: better than another act.
        """
        return insist(self._client, request, "the daemon is told again")


def insist(client: "Client", request: Callable[[], T], warning: str) -> T | None:
    """The answer to a request, which is repeated until there is one; None if the client is stopped before."""
    wait_s = TELL_WAIT_S
    while True:
        try:
            return request()
        except (NoDaemon, DaemonLost, RequestRefused) as trouble:
            if isinstance(trouble, RequestRefused) and REFUSALS[trouble.refusal].is_permanent:
                raise
            warn(warning, reason=str(trouble), again_in_s=wait_s)
        pause(client, wait_s)
        if client.is_stopped:
            return None
        wait_s = min(2 * wait_s, TELL_WAIT_MAX_S)


def warn(event: str, **about: object) -> None:
    """Log a warning."""
    import structlog  # here, because its import costs every program time

    structlog.get_logger(__name__).warning(event, **about)


def pause(client: "Client", wait_s: float) -> None:
    """Wait, but not on after the client was stopped."""
    end_at = time.monotonic() + wait_s
    while not client.is_stopped and (left_s := end_at - time.monotonic()) > 0:
        time.sleep(min(left_s, STOP_POLL_S))


def _told(error: Exception) -> str:
    """An error as the daemon can take it: short, and UTF-8 though it names a file that is not."""
    text = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
    return text.encode(errors="backslashreplace").decode()


def _is_done_with(message: Message) -> bool:
    """Whether a message needs no handler any more: it was parked, or another program applied it."""
    return message.parked_at is not None or message.applied_at is not None
