"""The daemon: runs one device's loops until it is stopped, whether its relay is in reach or not.

It keeps a connection to the relay, on which the sender and the receiver work, releases scheduled sends, keeps the mesh's
directory and its topics' keys current, and cleans up. What trying again cannot mend, such as a second home with the same key
or a revoked member, ends it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TypeVar

import msgspec
import structlog

from holdfast.device import directory as directories
from holdfast.device import inbox, outbox, own_key, scheduled, sending, topic_keys
from holdfast.device.author import Author
from holdfast.device.changes import Changes
from holdfast.device.device import Device
from holdfast.device.directory import Directory
from holdfast.device.link import Link, first_cause
from holdfast.device.mesh import NoMesh, OtherRelay, Session, Standing, standing
from holdfast.device.operations import Facts
from holdfast.device.outbox import Committed
from holdfast.device.publish import Publisher, PutOff
from holdfast.device.receiver import Receiver
from holdfast.device.requeue import Doubt
from holdfast.device.room import FreeBytes, Room, free_bytes
from holdfast.device.sealer import Sealer
from holdfast.device.sender import Sender
from holdfast.device.settings import Settings, changed
from holdfast.device.sync_client import SyncClient
from holdfast.protocol import administration, keys
from holdfast.protocol.features import Negotiated
from holdfast.protocol.outbox import RelayWord
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND, send_wait
from holdfast.store import faults
from holdfast.store.engine import Transaction
from holdfast.store.settings import SettingsInvalid
from holdfast.wire.client import Mesh, RelayClient, Unreachable
from holdfast.wire.network import Network, SystemNetwork
from holdfast.wire.relay_socket import SocketClosed
from holdfast.wire.transport import NetworkTransport

DRAIN_S = (
    5.0  # for batches in flight when the daemon stops; what is not settled then is offered again at the next start
)
HOUSEKEEPING_S = 60.0  # at most, between two searches for sends that are too old
PRUNE_EVERY = 60  # rounds of housekeeping, at least, between two that also prune
ROOM_LOOK_S = 5.0  # between two looks at the free space
FIRST_LOOK_S = 5.0  # that a caller waits at most for a daemon that has just started to see its mesh
RELEASE_POLL_S = 30.0  # between two looks for due sends, even without a wake-up: the clock may have been set

# Refusals that trying again cannot mend: a person has to decide something.
FINAL = frozenset(
    {
        Refusal.REPLACED_BY_NEWER_CONNECTION,
        Refusal.MEMBER_REVOKED,
        Refusal.NOT_A_MEMBER,
        Refusal.FEATURE_UNAVAILABLE,
        Refusal.FEATURE_PARAM_INVALID,
        Refusal.FEATURE_PARAM_BELOW_FLOOR,
        Refusal.OUTBOX_MAX_AGE_ABOVE_DEDUPE_WINDOW,
        Refusal.KEY_SUPERSEDED,
    }
)

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class Ended(Exception):
    """The daemon cannot go on, and starting it again would not help."""

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super().__init__(f"{refusal}: {detail}")
        self.refusal = refusal
        self.detail = detail


class LinkState(StrEnum):
    """Whether the daemon is connected to its relay."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the daemon's connection to its relay."""

    link: LinkState
    since: int  # microseconds
    relay: str
    detail: str = ""  # why it is not connected
    last_error: str | None = None  # the last fault, even if it is over
    last_error_at: int | None = None
    pending_count: int = 0  # messages that waited at the relay when the daemon connected last
    max_age_hours: int | None  # after which a send is given up; None if only the relay can say, and it was not met yet


class Daemon:
    """A device with all its loops; `run` runs them."""

    def __init__(
        self,
        device: Device,
        *,
        network: Network | None = None,
        settings: Settings | None = None,
        reread: Callable[[], Settings] | None = None,
        reloaded: Callable[[Settings], None] = lambda settings: None,
        free_bytes: FreeBytes = free_bytes,
        replay: bool = False,
    ) -> None:
        """`network` makes all connections. `replay` fetches acknowledged messages once more, for a home that lost its inbox.

        `reread` returns the settings as they are on disk now, for `reload`, which calls `reloaded` with them if they are good.
        `free_bytes` returns the free space of the disk.
        """
        membership, stands = standing(device)
        if membership is None or stands is Standing.NONE:
            raise NoMesh
        self.device = device
        self.membership = membership
        self.facts = Facts(mesh=membership.mesh, member=membership.member)
        self.changes = Changes()
        self.negotiated: Negotiated | None = None  # features, at the last connection
        self.settings = settings or Settings()
        self._reread = reread
        self._reloaded = reloaded
        self.room = Room(device, self.settings, free_bytes=free_bytes, told=self.changes.tell)
        self.sightings = 0  # how often the mesh was fetched from the relay
        self._links = {"connections": 0, "disconnections": 0}
        network = network or SystemNetwork()
        self.client = RelayClient(
            membership.relay,
            device.secret,
            clock=device.clock,
            random=device.random,
            transport=NetworkTransport(network),
        )
        self._directory = device.look(directories.load)
        self._keys = device.look(topic_keys.count)
        self._seen: Mesh | None = None  # the mesh as it was fetched last
        self._link = Link(self, network, replay=replay)
        self.sealer = Sealer(device, membership.mesh, lambda: self._directory)
        self.sender = Sender(
            device,
            self.client,
            self.sealer,
            membership.relay_pubkey,
            told=self.changes.tell,
            keys_stale=self._link.look_soon,
            troubled=self._troubled,
        )
        self.receiver = Receiver(
            device,
            self.facts,
            self.sealer,
            lambda: self._directory,
            learn=self._link.see_mesh,
            allow_receipts=self.sender.allow_receipts,
            told=self._received,
            live=self._link.went_live,
        )
        self.feed = SyncClient(
            device,
            network=network,
            home_relay=(membership.relay, membership.relay_pubkey),
            admit=self._admit,
            told=self.changes.tell,
        )
        self._has_looked = False  # the mesh was fetched, or the relay was found not to be in reach
        self._first_look_over = asyncio.Event()  # set by either, and when the daemon stops
        self._administration = asyncio.Lock()
        self._release_woken = asyncio.Event()
        self._house_woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self.sender.max_age_hours = hours = self._link.max_age_hours(self.settings)
        self._state = State(
            link=LinkState.DISCONNECTED, since=device.clock(), relay=membership.relay, max_age_hours=hours
        )

    @property
    def state(self) -> State:
        return self._state

    @property
    def directory(self) -> Directory:
        """The members and topics of the mesh, as they were fetched last."""
        return self._directory

    @property
    def counters(self) -> dict[str, int]:
        """Counts since the start, by name: connections, sends, messages, snapshots."""
        return self._links | self.sender.counts | self.receiver.counts | self.feed.counts

    async def run(self) -> None:
        """Work until `stop`. Raises Ended, or the fault of a store, if it cannot go on."""
        try:
            self.room.look()
            async with self.client, asyncio.TaskGroup() as tasks:
                sender = tasks.create_task(self._patiently(self.sender.run))
                loops = (self._stay_linked, self._release, self._keep_house, self._watch_room, self.feed.run)
                others = [tasks.create_task(self._patiently(work)) for work in loops]
                await self._stopping.wait()
                for task in others:
                    task.cancel()
                self.sender.end()
                await asyncio.wait([sender], timeout=DRAIN_S)
                sender.cancel()
        except BaseExceptionGroup as group:
            raise first_cause(group, Ended, faults.Fault) from group

    def stop(self) -> None:
        """Let `run` end."""
        self._stopping.set()

    def dismiss(self) -> None:
        """Refuse those who wait in `find_out` for the first look at the mesh, because the daemon is about to stop."""
        self._first_look_over.set()

    def reload(self) -> list[str]:
        """Read the settings again and use them; returns the names of those that changed. Invalid settings are refused."""
        if self._reread is None:
            raise Refused(Refusal.NOT_FOUND, "this daemon was started without settings that could be read anew")
        try:
            found = self._reread()
        except SettingsInvalid as error:
            raise Refused(Refusal.MALFORMED, str(error)) from error
        before, hours = self.settings, self._link.max_age_hours(found)
        self.settings = self.room.settings = found
        self.sender.max_age_hours = hours
        self._state = msgspec.structs.replace(self._state, max_age_hours=hours)
        self._reloaded(found)
        self.room.look()
        self.wake()
        return changed(before, found)

    def wake(self) -> None:
        """Wake all loops, after something was written that they have to look at."""
        self.sender.wake()
        self.feed.wake()
        self._release_woken.set()
        self.changes.tell()

    async def do(self, request: Callable[[Transaction], T]) -> T:
        """Run a write transaction, then wake the loops; returns the request's result."""
        answer = await self.device.do_soon(request)
        self.wake()
        return answer

    def look(self, query: Callable[[Transaction], T]) -> T:
        """Run a query in one read transaction."""
        return self.device.look(query)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A session to administer the mesh, one at a time. Raises Unreachable while the relay is not connected."""
        if self._state.link is not LinkState.CONNECTED:
            await self.find_out()
        if self._state.link is not LinkState.CONNECTED:
            raise Unreachable(self.client.url, FaultKind.CONNECTION_LOST, self._state.detail or "it was not met yet")
        async with self._administration:
            publisher = Publisher(self.device, self.client, self.membership.relay_pubkey)
            session = Session(self.device, self.client, publisher, self.membership, self._seen)
            try:
                await own_key.settle(self.device, self.client, publisher, self.membership.mesh)
                # First of all: a caller who asks for the members must not wait for administration that was put off.
                await session.refresh()
                self.sightings += 1
                await self._heal(publisher)
                if publisher.healed:
                    await session.refresh()
                yield session
            finally:
                self.membership = session.membership
                self.learned(session.mesh)

    async def find_out(self) -> bool:
        """Wait a moment for the first look at the mesh after the start; returns whether there was any need to wait."""
        if self._has_looked:
            return False
        await _sleep(self._first_look_over, FIRST_LOOK_S)
        if self._first_look_over.is_set() and not self._has_looked:
            raise Refused(Refusal.UNAVAILABLE, "the daemon is stopping, and had not looked at its mesh yet")
        return True

    def _looked(self) -> None:
        self._has_looked = True
        self._first_look_over.set()

    async def settle_key(self) -> None:
        """Before connecting: if a key rotation got no answer, find out by which key the relay knows this member."""
        async with self._administration:
            publisher = Publisher(self.device, self.client, self.membership.relay_pubkey)
            await own_key.settle(self.device, self.client, publisher, self.membership.mesh)

    async def heal(self) -> None:
        """Offer waiting administration before anything is sealed: a restored relay may have forgotten topic keys."""
        async with self._administration:
            await self._heal(Publisher(self.device, self.client, self.membership.relay_pubkey))

    async def _heal(self, publisher: Publisher) -> None:
        """Offer waiting administration; what is given up shows in health reports, because nobody else may hear of it."""
        try:
            await publisher.heal(self.membership.mesh)
        finally:
            for settled in publisher.healed:
                if not settled.is_done:
                    self._troubled(f"administration was given up: {settled.operation.last_error}")

    async def _admit(self, author: Author) -> None:
        """Vouch for the author of this home, so that the relay keeps its documents."""
        async with self.session() as session:
            mesh, member = self.facts.mesh, self.facts.member
            aux = self.device.random(keys.AUX_BYTES)
            try:
                await session.ask(administration.admit_author(author.secret, mesh, member, aux))
            except Refused as refused:
                self._troubled(f"the author of the documents is not admitted: {refused}")
                raise

    async def committed(self, doubt: Doubt) -> tuple[RelayWord, Committed | None]:
        """Ask the relay whether it has a send that is to be requeued; returns its word, and its ids for the send."""
        try:
            found = await self.client.committed(self.membership.mesh, doubt.client_message_id)
        except (Unreachable, Refused):
            return RelayWord.UNREACHABLE, None
        is_it = doubt.is_older_than_epoch or (doubt.event_id is not None and found.event_id == doubt.event_id.hex())
        if not (found.committed and is_it) or found.broker_message_id is None:
            return RelayWord.NOT_COMMITTED, None
        known = Committed(
            broker_message_id=found.broker_message_id, history_id=found.history_id, log_id=self._link.log_id
        )
        return RelayWord.COMMITTED, known

    def learned(self, seen: Mesh | None = None) -> None:
        """Reload directory and topic keys from the database, after the mesh was `seen`; wakes the sender if they changed."""
        is_same = seen is not None and seen is self._seen
        known = self._directory if is_same else self.device.look(directories.load)
        keys = self.device.look(topic_keys.count)
        self._seen = seen
        self._looked()
        if (known, keys) == (self._directory, self._keys):
            return  # what could not be sealed before cannot be sealed now, either
        self._directory, self._keys = known, keys
        self.sender.keys_came()
        self.changes.tell()

    def connected(self, pending_count: int, max_age_hours: int) -> None:
        """Note that the relay is connected and knows this member."""
        self._links["connections"] += 1
        self._set(LinkState.CONNECTED, pending_count=pending_count, max_age_hours=max_age_hours)
        self._house_woken.set()

    def _troubled(self, what: str) -> None:
        """Keep a fault for health reports."""
        self._state = msgspec.structs.replace(self._state, last_error=what, last_error_at=self.device.clock())

    def _disconnected(self, detail: str) -> None:
        self._looked()
        self._troubled(detail)
        if self._state.link is LinkState.CONNECTED:
            self._links["disconnections"] += 1
        self._set(LinkState.DISCONNECTED, detail=detail)

    def _set(self, link: LinkState, **more: object) -> None:
        since = self._state.since if link is self._state.link else self.device.clock()
        self._state = msgspec.structs.replace(self._state, link=link, since=since, **{"detail": "", **more})
        self.changes.tell()

    def _received(self) -> None:
        self.sender.wake()
        self.changes.tell()

    async def _stay_linked(self) -> None:
        """Connect to the relay, and again whenever the connection ends."""
        attempts = 0
        while True:
            try:
                await self._link.meet()
            except SocketClosed as closed:
                if closed.refusal in FINAL:
                    raise Ended(closed.refusal, closed.detail) from closed
                detail = closed.detail
            except (Unreachable, PutOff) as fault:
                detail = fault.detail or str(fault)
            except OtherRelay as fault:
                detail = str(fault)
            except Refused as refused:
                if refused.refusal in FINAL:
                    raise Ended(refused.refusal, refused.detail) from refused
                detail = refused.detail
            except faults.Fault as fault:
                self._disconnected(str(fault))
                raise
            attempts = 1 if self._state.link is LinkState.CONNECTED else attempts + 1
            self._disconnected(detail)
            wait = send_wait(attempts, sending.fraction(self.device.random))
            _log.warning("not connected", relay=self.client.url, detail=detail, again_in_s=wait / SECOND)
            await asyncio.sleep(wait / SECOND)

    async def _release(self) -> None:
        """Move scheduled sends into the operation log when their time comes."""
        device = self.device
        while True:
            self._release_woken.clear()
            while await device.do_soon(lambda tx: scheduled.release(tx, self.facts, device.clock(), device.random)):
                self.sender.wake()
                self.changes.tell()
            due_at = device.look(scheduled.next_release_at)
            wait_s = RELEASE_POLL_S if due_at is None else (due_at - device.clock()) / SECOND
            await _sleep(self._release_woken, max(min(wait_s, RELEASE_POLL_S), 0.0))

    async def _watch_room(self) -> None:
        """Notice that free space gets short, or is back, even while nothing is sent."""
        while True:
            self.room.look()
            await asyncio.sleep(ROOM_LOOK_S)

    async def _keep_house(self) -> None:
        """Give up sends that are too old and prune what need not be kept, in bounded steps.

        Nothing is pruned before a relay has let this daemon in, which shows that its clock is right: by one that is far
        ahead everything is old. Each connection begins a round, because a daemon may run for less than a minute.
        """
        device, rounds = self.device, PRUNE_EVERY
        while True:
            self._house_woken.clear()
            while await self.sender.age_out():
                pass
            if rounds >= PRUNE_EVERY and self._state.link is LinkState.CONNECTED:
                rounds = 0
                for prune in (inbox.prune, outbox.prune):
                    while await device.do_soon(lambda tx, prune=prune: prune(tx, device.clock())):  # type: ignore[misc]
                        pass
                if dropped := device.drop_expired_keys():
                    _log.info("old keys dropped", count=dropped)
            rounds += 1
            await _sleep(self._house_woken, HOUSEKEEPING_S)

    async def _patiently(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a loop, and again after a temporary fault of the store."""
        attempts = 0
        while True:
            try:
                return await work()
            except (faults.Fault, BaseExceptionGroup) as error:
                fault = first_cause(error, faults.Fault) if isinstance(error, BaseExceptionGroup) else error
                if not (isinstance(fault, faults.Fault) and fault.temporary):
                    raise
                attempts += 1
                self._troubled(str(fault))
                _log.error("the store failed", detail=str(fault))
                await asyncio.sleep(send_wait(attempts, sending.fraction(self.device.random)) / SECOND)


async def _sleep(woken: asyncio.Event, wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await woken.wait()
    except TimeoutError:
        return
