"""The daemon's connection to its relay: recognises the relay, agrees with it on what was sent, then sends and receives.

Nothing is sealed on a connection before the relay has said which sends of this device it has.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from holdfast.device import arrivals, own_key, receipts, recover, sending, topic_keys, topics
from holdfast.device.arrivals import Sealed
from holdfast.device.forks import Fork
from holdfast.device.mesh import NotThatOne, OtherRelay, Session, Standing, standing
from holdfast.device.publish import Publisher, PutOff
from holdfast.device.reconcile import forks_in, reconcile
from holdfast.device.settings import Settings
from holdfast.protocol import envelope, event
from holdfast.protocol.payload import Payload
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import max_age_hours
from holdfast.store import faults
from holdfast.wire import relay_socket
from holdfast.wire.client import Dedupe, Fates, Mesh, Unreachable
from holdfast.wire.network import Network
from holdfast.wire.queue_frames import QueueStatus
from holdfast.wire.relay_socket import SocketClosed

if TYPE_CHECKING:
    from holdfast.device.daemon import Daemon

LOOK_S = 5.0  # between two looks at the mesh: who came, who left, who waits for a key
LOOK_S_MIN = 0.5  # even if something seems to have changed: waiting for a key must not overload the relay
FATES_S = 30.0  # between two requests for the fates of our sends
REOPENED_AT_ONCE = 100  # messages that are opened in one transaction

_NO_ANSWER = frozenset({FaultKind.TIMEOUT, FaultKind.CONNECTION_LOST})

_log = structlog.get_logger(__name__)


class Link:
    """The connection of a daemon to its relay."""

    def __init__(self, daemon: "Daemon", network: Network, *, replay: bool) -> None:
        self._daemon = daemon
        self._network = network
        self._dedupe: Dedupe | None = None  # how long the relay remembers ids, as it said last
        # The relay's log in which acknowledged messages were replayed; None if this home never lost its inbox.
        self._replayed_in = recover.IN_NO_LOG if replay else daemon.device.look(recover.replayed_in)
        self._wants_replay = False  # on this connection
        self._is_replayed = False  # the replay is complete, and that is not on disk yet
        self._look_woken = asyncio.Event()
        self._tended: Mesh | None = None
        # How many keys there were when unreadable messages were last tried again.
        self._keys_tried: tuple[int, int, int] | None = None
        self.log_id: bytes | None = None  # of the relay, at the last connection

    async def meet(self) -> None:
        """Connect, and send and receive until the connection is lost, which raises."""
        daemon, device = self._daemon, self._daemon.device
        hours = await self._recognise()
        await self._finish_joining()
        await daemon.settle_key()
        async with relay_socket.connected(
            daemon.client.url, device.secret, network=self._network, clock=device.clock, random=device.random
        ) as socket:
            daemon.negotiated = await socket.negotiate()
            for ignored in daemon.negotiated.ignored:
                _log.warning("feature_optional_param_invalid", detail=ignored)
            status = await self._open_queue(socket)
            self.log_id = bytes.fromhex(status.log_id)
            await reconcile(device, daemon.facts, status)
            await self._heal()
            try:
                await daemon.sender.open(hours, self.log_id)
                daemon.connected(status.pending_count, hours)
                await self._work(socket, status)
            finally:
                daemon.sender.shut()

    async def _heal(self) -> None:
        """Offer administration before anything is sealed; only a relay that does not answer at all ends the meeting.

        One event over which the relay stumbles must not hold up every message: each look at the mesh offers it again.
        """
        try:
            await self._daemon.heal()
        except PutOff as put_off:
            if put_off.says in _NO_ANSWER:
                raise
            _log.warning("administration still waits", says=str(put_off.says), detail=put_off.detail)

    async def _open_queue(self, socket: relay_socket.RelaySocket) -> QueueStatus:
        daemon = self._daemon
        try:
            return await socket.open_queue(daemon.membership.mesh, daemon.device.epoch, replay=self._wants_replay)
        except SocketClosed as closed:
            if closed.refusal is Refusal.STALE_KEY:  # and a newer key would have been used, if there was one
                detail = f"the relay no longer knows this member by {daemon.device.pubkey}"
                raise Refused(Refusal.KEY_SUPERSEDED, detail) from closed
            if closed.refusal is Refusal.NOT_A_MEMBER and await own_key.introduce_again(daemon.device, daemon.client):
                detail = "it had forgotten this member's key, and knows it again"
                raise SocketClosed(closed.url, closed.fault, detail) from closed
            raise

    async def see_mesh(self) -> bool:
        """Fetch the mesh, keep topic keys that were granted, grant those that others wait for, open what can be opened now.

        Returns whether the mesh was fetched: then somebody who is not in the directory is not in the mesh.
        """
        before = self._daemon.sightings
        try:
            async with self._daemon.session() as session:
                await self._tend(session)
        except (Unreachable, PutOff, Refused, NotThatOne) as trouble:
            _log.warning("the mesh could not be looked at", detail=str(trouble))
        await self._reopen()
        return self._daemon.sightings > before

    async def _tend(self, session: Session) -> None:
        """Keep and grant topic keys; once nothing is left to do, this is skipped until the mesh changes."""
        if session.mesh is self._tended:
            return
        await topics.collect(session)
        for deed in await topics.tend(session):
            _log.info("topic key", topic=deed.topic, did=str(deed.did), members=deed.members)
        await topics.collect(session)  # the mesh was fetched anew meanwhile, and another keeper may have made its keys
        if not topics.wanting(session):
            self._tended = session.mesh

    def went_live(self) -> None:
        """Note that the replay of acknowledged messages is complete; the next connection to this log need not ask for it."""
        if self._wants_replay:
            self._replayed_in, self._wants_replay, self._is_replayed = self.log_id, False, True
            self.look_soon()

    def look_soon(self) -> None:
        """Fetch the mesh soon, because members or keys seem to have changed."""
        self._look_woken.set()

    async def _recognise(self) -> int:
        """Check the relay's key; returns for how many hours a row may safely be offered to it."""
        membership = self._daemon.membership
        information = await self._daemon.client.information()
        if information.pubkey != membership.relay_pubkey:
            raise OtherRelay(membership.relay, membership.relay_pubkey, information.pubkey)
        self._dedupe = information.features.dedupe
        # A relay that was restored since the last replay may have messages again that it lacked then.
        self._wants_replay = self._replayed_in is not None and self._replayed_in.hex() != information.log_id
        return _hours(self._dedupe, self._daemon.settings)

    def max_age_hours(self, settings: Settings) -> int | None:
        """For how many hours a row may be offered by these settings; refuses unsafe ones. None if only the relay can say."""
        return settings.outbox.max_age_hours_override if self._dedupe is None else _hours(self._dedupe, settings)

    async def _finish_joining(self) -> None:
        """Repeat a founding or joining of the mesh that got no answer: until then the relay does not know this member."""
        daemon = self._daemon
        if standing(daemon.device)[1] is not Standing.UNFINISHED:
            return
        await Publisher(daemon.device, daemon.client, daemon.membership.relay_pubkey).heal(daemon.membership.mesh)
        if standing(daemon.device)[1] is not Standing.MEMBER:
            asked = daemon.device.look(lambda tx: sending.called(tx, daemon.membership.client_message_id))
            why = "" if asked is None else f" ({asked.last_error})"
            raise Refused(Refusal.NOT_A_MEMBER, f"this home did not get into its mesh{why}")

    async def _work(self, socket: relay_socket.RelaySocket, status: QueueStatus) -> None:
        """Receive, look at the mesh and ask for fates, while the connection lasts."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_looking())
                tasks.create_task(self._ask_for_fates(forks_in(status)))
                await self._daemon.receiver.run(socket, bytes.fromhex(status.log_id))
        except BaseExceptionGroup as group:
            raise first_cause(group, faults.Fault, SocketClosed) from group

    async def _keep_looking(self) -> None:
        while True:
            self._look_woken.clear()
            if self._is_replayed and self._replayed_in is not None:
                replayed = partial(recover.replayed, now=self._daemon.device.clock(), log_id=self._replayed_in)
                await self._daemon.device.do_soon(replayed)
                self._is_replayed = False
            await self.see_mesh()
            await asyncio.sleep(LOOK_S_MIN)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._look_woken.wait()

    async def _ask_for_fates(self, forks: list[Fork]) -> None:
        while True:
            try:
                await self._take_fates(forks)
            except (Unreachable, Refused) as trouble:
                _log.warning("no word of what became of sends", detail=str(trouble))
            await asyncio.sleep(FATES_S)

    async def _take_fates(self, forks: list[Fork]) -> None:
        """Ask for fates until the relay has no more."""
        daemon, device = self._daemon, self._daemon.device
        before, after = -1, device.look(lambda tx: receipts.fates_after(tx, self.log_id or b"", forks))
        while before < after:
            found = await daemon.client.fates(daemon.membership.mesh, after)
            await self._keep_fates(found)
            before, after = after, found.through_seq

    async def _keep_fates(self, found: Fates) -> None:
        daemon, device = self._daemon, self._daemon.device
        log_id = bytes.fromhex(found.log_id)
        await device.do_soon(lambda tx: receipts.take_fates(tx, device.clock(), log_id, found.through_seq, found.fates))
        if found.fates:
            daemon.changes.tell()

    async def _reopen(self) -> None:
        """Try to open unreadable messages again, if there are other keys than at the last try."""
        daemon, after = self._daemon, 0
        keys = (*daemon.look(topic_keys.count), len(daemon.device.secrets))
        if keys == self._keys_tried:
            return
        while sealed := self._unreadable(after):
            opened = [(one.id, content) for one in sealed if (content := self._opened(one.event)) is not None]
            if opened:
                await self._keep_opened(opened)
                daemon.changes.tell()
            after = sealed[-1].arrival
        self._keys_tried = keys  # only now: a lost connection cancels this, and the next one has to go on

    def _unreadable(self, after: int) -> list[Sealed]:
        return self._daemon.look(lambda tx: arrivals.unreadable(tx, after=after, limit=REOPENED_AT_ONCE))

    def _opened(self, raw: bytes) -> Payload | None:
        signed = event.decode(raw)
        return self._daemon.sealer.open(signed, envelope.from_event(signed))

    async def _keep_opened(self, opened: Sequence[tuple[str, Payload]]) -> None:
        daemon = self._daemon
        await daemon.device.do_soon(lambda tx: arrivals.reopen(tx, daemon.facts, daemon.device.clock(), opened))


def _hours(dedupe: Dedupe, settings: Settings) -> int:
    return max_age_hours(dedupe.mode, dedupe.days, settings.outbox.max_age_hours_override)


def first_cause(group: BaseExceptionGroup[BaseException], *kinds: type[BaseException]) -> BaseException:
    """The most telling exception of a group: the first of these kinds, in their order, or else any."""
    leaves = _leaves(group)
    for kind in (*kinds, Exception):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return leaves[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
