"""`holdfast.SyncClient`: an author's documents in one home, synced with every relay that keeps them.

    with at_work(Home("notes"), create=True, threaded=True) as device:
        documents = SyncClient(device)
        await documents.init()
        await documents.add_relay("https://relay.example")
        await documents.put("shopping", "milk")
        await documents.run()

When `put` returns, the edit is on disk and queued in the operation log for every relay. `run` syncs with the relays; without
it, and without any relay in reach, documents can still be read and edited. The daemon of a home has one of these.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import structlog

from holdfast.device import author as authors
from holdfast.device import feed_documents, feed_relays, feed_views, sending
from holdfast.device.author import Author
from holdfast.device.device import Device
from holdfast.device.feed_documents import Edit, Edited, Writer
from holdfast.device.feed_link import Admit, Connect, FeedLink
from holdfast.device.feed_views import Document, DocumentVersion
from holdfast.device.mesh import OtherRelay
from holdfast.device.publish import PutOff
from holdfast.protocol.refusal import REFUSALS, Refused
from holdfast.protocol.schedule import HOUR, SECOND, send_wait
from holdfast.store.engine import Transaction
from holdfast.store.world import Random
from holdfast.wire.client import Unreachable, relay_url
from holdfast.wire.feed_conversation import conversing
from holdfast.wire.network import Network, SystemNetwork
from holdfast.wire.relay_socket import SocketClosed

_log = structlog.get_logger(__name__)

ADMIT_AGAIN = HOUR  # every decision that is refused for good stays in the log, and edits are offered twice a minute


class SyncClient:
    """The documents of one home's author."""

    def __init__(
        self,
        device: Device,
        *,
        network: Network | None = None,
        connect: Connect | None = None,
        home_relay: tuple[str, str] | None = None,
        admit: Admit | None = None,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        """`home_relay` is the mesh's relay (address, key), `admit` admits the author there; `told` is called at changes."""
        self._device = device
        self._connect: Connect = connect or partial(
            conversing, network=network or SystemNetwork(), clock=device.clock, random=device.random
        )
        self._home_relay = home_relay
        self._admit = admit
        self._told = told
        self._woken = asyncio.Event()
        self._links: dict[str, FeedLink] = {}
        self._denied_at: int | None = None  # when the mesh refused to admit the author
        self.details: dict[str, str] = {}  # why a relay was last disconnected

    @property
    def counts(self) -> dict[str, int]:
        """Counts since the start, by name."""
        totals = {"snapshots_applied": 0, "snapshots_invalid": 0, "snapshots_offered": 0}
        for link in self._links.values():
            for name, count in link.counts.items():
                totals[name] += count
        return totals

    def is_live(self, relay: str) -> bool:
        """Whether a relay is connected and everything that it has is known here."""
        return relay in self._links and self._links[relay].is_live

    async def run(self) -> None:
        """Sync with every relay, until cancelled; raises faults of the store."""
        async with asyncio.TaskGroup() as tasks:
            following: set[str] = set()
            while True:
                self._woken.clear()
                await self._device.do_soon(self._add_home)
                author, relays = self._device.look(lambda tx: (authors.load(tx), feed_relays.load(tx)))
                if author is not None:
                    for relay in {one.relay for one in relays} - following:
                        following.add(relay)
                        tasks.create_task(self._stay_linked(relay, author))
                await self._woken.wait()

    def wake(self) -> None:
        """Look for new relays and something to offer now."""
        self._woken.set()
        for link in self._links.values():
            link.wake()

    async def init(self, member: str | None = None) -> Author:
        """Give this home an author, unless it has one: a new one, or the one whose key this member has shared."""
        device = self._device

        def keep(transaction: Transaction) -> Author:
            self._add_home(transaction)
            if member is not None:
                return authors.take(transaction, device.clock(), device.secrets, member)
            return authors.load(transaction) or authors.make(transaction, device.clock(), device.random)

        kept = await device.do_soon(keep)
        self._changed()
        return kept

    async def add_relay(self, url: str, pubkey: str | None = None) -> bool:
        """Keep the documents at one more relay; returns whether it is new."""
        relay = relay_url(url)
        is_new = await self._device.do_soon(lambda tx: feed_relays.add(tx, self._device.clock(), relay, pubkey))
        self._changed()
        return is_new

    async def put(self, name: str, body: str, *, seen: Sequence[str] | None = None) -> Document:
        """Make or change a document. `seen` are the versions to replace: if others are current, this is refused."""
        return await self._edit(feed_documents.put, Edit(name=name, body=body, seen=_seen(seen)))

    async def delete(self, name: str, *, seen: Sequence[str] | None = None) -> Document:
        """Delete a document."""
        return await self._edit(feed_documents.put, Edit(name=name, body=None, seen=_seen(seen)))

    async def resolve(self, name: str, body: str | None, *, seen: Sequence[str] | None = None) -> Document:
        """End a conflict with this text, or by deleting the document."""
        return await self._edit(feed_documents.resolve, Edit(name=name, body=body, seen=_seen(seen)))

    def document(self, name: str) -> Document:
        """A document as it stands, by its name or id."""
        return self._device.look(lambda tx: feed_views.document(tx, authors.need(tx), name))

    def documents(self, **filters: bool) -> list[Document]:
        """All documents but deleted ones; `deleted` adds those, `conflicts` drops all but conflicts."""
        return self._device.look(lambda tx: feed_views.all_documents(tx, authors.need(tx), **filters))

    def history(self, name: str) -> list[DocumentVersion]:
        """The versions of a document that are kept, the newest first."""
        return self._device.look(lambda tx: feed_views.versions(tx, authors.need(tx), name))

    async def _edit(self, change: Callable[[Transaction, int, Random, Writer, Edit], Edited], edit: Edit) -> Document:
        device = self._device

        def write(transaction: Transaction) -> Document:
            writer = Writer(authors.need(transaction), device.pubkey)
            name = feed_views.edited_name(transaction, writer.author, edit.name)
            named = msgspec.structs.replace(edit, name=name)
            edited = change(transaction, device.clock(), device.random, writer, named)
            feed_relays.offer_to_all(transaction, device.clock(), device.random, edited)
            return feed_views.document(transaction, writer.author, edited.d)

        done = await device.do_soon(write)
        self._changed()
        return done

    def _add_home(self, transaction: Transaction) -> None:
        if self._home_relay is not None:
            relay, pubkey = self._home_relay
            feed_relays.add(transaction, self._device.clock(), relay, pubkey, is_home=True)

    def _changed(self) -> None:
        self.wake()
        self._told()

    def _heard(self) -> None:
        """Wake all links, because what came from one relay may have to go to others."""
        for link in self._links.values():
            link.wake()
        self._told()

    async def _stay_linked(self, relay: str, author: Author) -> None:
        """Connect to a relay, and again whenever the connection ends."""
        is_home = self._home_relay is not None and relay == self._home_relay[0]
        admit = self._admitted if is_home and self._admit is not None else None
        link = self._links[relay] = FeedLink(self._device, relay, self._connect, admit=admit, told=self._heard)
        attempts = 0
        while True:
            try:
                await link.meet(author)
            except (SocketClosed, Unreachable, OtherRelay, Refused) as trouble:
                self.details[relay] = trouble.detail if isinstance(trouble, SocketClosed | Refused) else str(trouble)
            attempts = 1 if link.was_live else attempts + 1
            wait = send_wait(attempts, sending.fraction(self._device.random))
            _log.info("documents are not followed", relay=relay, detail=self.details[relay], again_in_s=wait / SECOND)
            await asyncio.sleep(wait / SECOND)

    async def _admitted(self, author: Author) -> None:
        """Have the mesh's relay admit the author; a failure is left to a later attempt to offer a document."""
        assert self._admit is not None  # noqa: S101 - asked before
        now = self._device.clock()
        if self._denied_at is None or not 0 <= now - self._denied_at <= ADMIT_AGAIN:
            try:
                await self._admit(author)
            except (Unreachable, Refused, PutOff) as trouble:
                _log.warning("the author was not admitted", detail=str(trouble))
                if isinstance(trouble, Refused) and REFUSALS[trouble.refusal].is_permanent:
                    self._denied_at = now


def _seen(seen: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if seen is None else tuple(seen)
