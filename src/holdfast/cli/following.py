"""An inbox as it grows, for commands that go on until they are interrupted."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.device.ipc_link import DaemonLost, NoDaemon, RequestRefused
from holdfast.protocol.refusal import REFUSALS
from holdfast.store.world import wall_clock

if TYPE_CHECKING:
    from holdfast.device.client import Client
    from holdfast.device.ipc_documents import Message

PAGE_ROWS = 500


class Following:
    """The messages after a number, or from now on; one that could not be opened comes again when it can."""

    def __init__(self, client: "Client", filters: dict[str, Any], after: int = 0) -> None:
        self._client = client
        self._filters = filters
        self._first_after = self._after = after
        self._since = filters["since"]
        if not after and self._since is None:
            self._since = wall_clock()
        self._read: set[int] = set()  # what was opened before it was yielded; its event is yet to come

    def messages(self) -> Iterator["Message"]:
        """What is there and what arrives, without end.

        If the daemon goes away or is busy meanwhile, this waits for it; if it is not there at the start, this raises. It
        also raises if the home was put back to an earlier time: what arrives there is numbered anew.
        """
        from holdfast.device.client import RECONNECT_WAIT_S  # here, because every command would pay for it

        cursor = self._client.health().cursor  # before the first look, so that nothing falls between it and the stream
        while True:
            try:
                yield from self.new()
                for event in self._client.events(after=cursor, kinds=("stored", "opened")):
                    if event.kind == "opened":
                        yield from self.opened(event.data)
                    elif event.seq is not None:
                        yield from self.new()
                    cursor = event.cursor or cursor  # only now: an event that could not be looked at comes again
            except (NoDaemon, DaemonLost, RequestRefused) as trouble:
                if isinstance(trouble, RequestRefused) and REFUSALS[trouble.refusal].is_permanent:
                    raise
                time.sleep(RECONNECT_WAIT_S)

    def new(self) -> Iterator["Message"]:
        """The messages that have arrived."""
        while True:
            page = self._client.inbox(after=self._after, limit=PAGE_ROWS, **{**self._filters, "since": self._since})
            for message in page.messages:
                self._after = message.arrival
                if message.opened_at is not None:
                    self._read.add(message.arrival)
                yield message
            if page.next_after is None:
                return

    def opened(self, names: dict[str, Any]) -> Iterator["Message"]:
        """A message that came before and can be read only now, unless it was not asked for."""
        received = self._client.trace(names["client_message_id"])["received"]
        found = [one["id"] for one in received if one["broker_message_id"] == names["message_id"]]
        arrivals = [self._client.message(name).arrival for name in found]
        # All is asked before any of it is yielded: nothing is yielded twice when this begins again after a failure.
        pages = [
            self._client.inbox(after=max(arrival - 1, self._first_after), limit=1, **self._filters)
            for arrival in arrivals
        ]
        for name, arrival, page in zip(found, arrivals, pages, strict=True):
            for message in page.messages:
                if message.id == name and arrival not in self._read:
                    yield message
            self._read.discard(arrival)
