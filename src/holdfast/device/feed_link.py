"""Syncs an author's documents with one relay: fetches its state, then its changes, and only then offers what it lacks.

Snapshots are verified before they are applied, and are on disk together with the relay's position before anything else
happens. If the relay has another log than the last time, its state is fetched anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

import msgspec
import structlog

from holdfast.device import feed_documents, feed_relays
from holdfast.device.author import Author
from holdfast.device.device import Device
from holdfast.device.feed_documents import Arrived, Writer
from holdfast.device.feed_relays import Answered
from holdfast.device.link import first_cause
from holdfast.device.mesh import OtherRelay
from holdfast.device.publish import doubt
from holdfast.device.sending import Operation
from holdfast.protocol.document import DOCUMENT_KIND
from holdfast.protocol.reaction import REACTIONS, FaultKind, Level
from holdfast.protocol.refusal import Refusal, Refused, refusal_in
from holdfast.protocol.schedule import SECOND
from holdfast.store import faults
from holdfast.wire.client import Information, Said, SnapshotYes
from holdfast.wire.feed_frames import CaughtUp, Changed, Compacted, Denied, Frame, Held, State
from holdfast.wire.relay_socket import SocketClosed

FRAMES_AT_ONCE = 200  # frames that share one transaction
READ_AT_ONCE = 20  # snapshots that are verified before others get their turn on the event loop
ANSWER_TIMEOUT_S = 15.0  # for the relay's next frame while catching up, and for its answer to an offer
POLL_S = 5.0  # between two looks for something to offer, even without a wake-up

# The relay cannot replay changes from our position, but its state can be fetched.
_START_OVER = frozenset({Refusal.CURSOR_EXPIRED, Refusal.CURSOR_AHEAD})

_log = structlog.get_logger(__name__)


class Conversation(Protocol):
    """A connection to a relay, authenticated with the author's key."""

    async def information(self) -> Information:
        """Who the relay is; asked on the open connection, so that no other relay can answer."""

    async def ask_state(self, author: str, kind: int) -> None:
        """Ask for the current snapshots."""

    async def ask_changes(self, author: str, kind: int, since: int) -> None:
        """Ask for the snapshots accepted after a position, and for all that follow."""

    async def receive(self, most: int) -> list[Frame]:
        """The frames that have come; waits for at least one."""

    async def publish(self, events: Sequence[bytes]) -> list[Said]:
        """Offer snapshots; returns an answer to each."""


Connect = Callable[[str, bytes], AbstractAsyncContextManager[Conversation]]
"""Connect to a relay as the holder of a key."""

Admit = Callable[[Author], Awaitable[None]]
"""Have the relay of the mesh keep an author's documents."""


class FeedLink:
    """The sync of one home with one relay."""

    def __init__(
        self, device: Device, relay: str, connect: Connect, *, admit: Admit | None, told: Callable[[], None]
    ) -> None:
        self._device = device
        self.relay = relay
        self._connect = connect
        self._admit = admit
        self._told = told
        self._woken = asyncio.Event()
        self._log_id = b""
        self._pubkey = ""
        self.is_live = False  # connected, and everything that the relay has is known here
        self.was_live = False  # whether the last connection got that far
        self.counts = {"snapshots_applied": 0, "snapshots_invalid": 0, "snapshots_offered": 0}

    def wake(self) -> None:
        """Look for something to offer now."""
        self._woken.set()

    async def meet(self, author: Author) -> None:
        """Connect, and sync until the connection is lost, which raises."""
        self.was_live = False
        try:
            async with self._connect(self.relay, author.secret) as conversation:
                await self._recognise(conversation)
                await self._take_back()
                await self._catch_up(conversation, author)
                self.is_live = self.was_live = True
                self._told()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._follow(conversation, author))
                    tasks.create_task(self._offer(conversation, author))
        except BaseExceptionGroup as group:
            raise first_cause(group, faults.Fault, OtherRelay, SocketClosed, Refused) from group
        finally:
            self.is_live = False

    async def _recognise(self, conversation: Conversation) -> None:
        """Check the relay's key, and start over if it has another log than the one that was followed."""
        shown = await conversation.information()
        known = self._device.look(lambda tx: feed_relays.find(tx, self.relay))
        if known.pubkey is not None and known.pubkey != shown.pubkey:
            raise OtherRelay(self.relay, known.pubkey, shown.pubkey)
        if shown.log_id is None:
            raise SocketClosed(self.relay, FaultKind.NOT_UNDERSTOOD, "it does not say which log it has")
        self._log_id, self._pubkey = bytes.fromhex(shown.log_id), shown.pubkey
        await self._device.do_soon(lambda tx: feed_relays.recognise(tx, self.relay, shown.pubkey))
        if known.log_id is not None and known.log_id != self._log_id:
            _log.warning("the relay has another log than before", relay=self.relay)
            await self._device.do_soon(lambda tx: feed_relays.start_over(tx, self.relay))

    async def _take_back(self) -> None:
        device = self._device
        while await device.do_soon(lambda tx: feed_relays.take_back(tx, device.clock(), self.relay)):
            pass

    async def _catch_up(self, conversation: Conversation, author: Author) -> None:
        """Take everything that the relay has: the changes since our position, or its state if it cannot replay them."""
        seq = self._device.look(lambda tx: feed_relays.find(tx, self.relay)).seq
        if seq is None:
            seq = await self._fetch_state(conversation, author)
        try:
            await self._replay(conversation, author, seq)
        except Refused as refused:
            if refused.refusal not in _START_OVER:
                raise
            _log.warning("the relay cannot be followed from there", relay=self.relay, detail=refused.detail)
            await self._replay(conversation, author, await self._fetch_state(conversation, author))
        device = self._device
        await device.do_soon(lambda tx: feed_relays.offer_all_lacking(tx, device.clock(), device.random, self.relay))

    async def _replay(self, conversation: Conversation, author: Author, since: int) -> None:
        await conversation.ask_changes(author.pubkey, DOCUMENT_KIND, since)
        while not await self._take(author, await self._soon(conversation)):
            pass

    async def _fetch_state(self, conversation: Conversation, author: Author) -> int:
        """Fetch the relay's current snapshots, and apply them when they are complete; returns the position of that state."""
        await self._device.do_soon(lambda tx: feed_relays.unstage(tx, self.relay))
        await conversation.ask_state(author.pubkey, DOCUMENT_KIND)
        snapshot_seq: int | None = None
        while True:
            frames = await self._soon(conversation)
            held = [frame.event for frame in frames if isinstance(frame, Held)]
            await self._stage(author, held)
            for frame in frames:
                match frame:
                    case State():
                        snapshot_seq = frame.snapshot_seq
                    case Denied():
                        raise _denied(frame)
                    case CaughtUp():
                        return await self._take_state(author, frame.seq, snapshot_seq)

    async def _stage(self, author: Author, held: Sequence[bytes]) -> None:
        arrived = await self._read(author, held)
        await self._guard(author, arrived)
        if arrived:
            await self._device.do_soon(lambda tx: feed_relays.stage(tx, self.relay, arrived))

    async def _take_state(self, author: Author, seq: int, snapshot_seq: int | None) -> int:
        if seq != snapshot_seq:
            detail = f"its state is said to be that of position {snapshot_seq}, and ends at {seq}"
            raise SocketClosed(self.relay, FaultKind.NOT_UNDERSTOOD, detail)
        device, take = self._device, partial(feed_relays.take_state, relay=self.relay, log_id=self._log_id, seq=seq)
        news = await device.do_soon(lambda tx: take(tx, device.clock(), device.random, author))
        self._heard(news)
        return seq

    async def _follow(self, conversation: Conversation, author: Author) -> None:
        """Apply changes as they come, as long as the connection lasts."""
        while True:
            await self._take(author, await conversation.receive(FRAMES_AT_ONCE))

    async def _take(self, author: Author, frames: Sequence[Frame]) -> bool:
        """Apply changes and move the relay's position; returns whether the replay is complete."""
        changes = [frame for frame in frames if isinstance(frame, Changed)]
        arrived = await self._read(author, [frame.event for frame in changes])
        await self._guard(author, arrived)
        await self._shun_twins(author, arrived)
        positions = [frame.seq for frame in frames if isinstance(frame, Changed | Compacted | CaughtUp)]
        if positions:
            device, seq = self._device, max(positions)
            take = partial(feed_relays.follow, relay=self.relay, log_id=self._log_id, seq=seq, arrived=arrived)
            self._heard(await device.do_soon(lambda tx: take(tx, device.clock(), device.random, author)))
        for frame in frames:
            if isinstance(frame, Denied):
                raise _denied(frame)
        return any(isinstance(frame, CaughtUp) for frame in frames)

    async def _soon(self, conversation: Conversation) -> list[Frame]:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await conversation.receive(FRAMES_AT_ONCE)
        except TimeoutError as error:
            detail = f"no answer within {ANSWER_TIMEOUT_S:g} s"
            raise SocketClosed(self.relay, FaultKind.TIMEOUT, detail) from error

    async def _read(self, author: Author, raws: Sequence[bytes]) -> list[Arrived]:
        """The valid snapshots; invalid ones are logged and skipped, because the relay would bring them for ever."""
        arrived: list[Arrived] = []
        for number, raw in enumerate(raws):
            try:
                arrived.append(feed_documents.read_arrived(raw, author.pubkey))
            except Refused as refused:
                self.counts["snapshots_invalid"] += 1
                _log.warning("not a snapshot", relay=self.relay, refusal=str(refused.refusal), detail=refused.detail)
            if number % READ_AT_ONCE == READ_AT_ONCE - 1:
                await asyncio.sleep(0)
        return arrived

    async def _guard(self, author: Author, arrived: Sequence[Arrived]) -> None:
        """Take a new epoch if the relay has edits of this home that this home does not know."""
        device, writer = self._device, Writer(author, self._device.pubkey)
        if device.look(lambda tx: feed_documents.is_ahead(tx, writer, arrived)):
            _log.error("sender_reset", relay=self.relay, epoch=device.epoch.hex(), what="documents")
            await device.take_new_epoch()

    async def _shun_twins(self, author: Author, arrived: Sequence[Arrived]) -> None:
        """Fetch the state anew if edits share a clock: only the last of several successive ones is to be set apart."""
        device = self._device
        if device.look(lambda tx: feed_documents.has_twin(tx, author, arrived)):
            _log.error("edits share a clock", relay=self.relay)
            await device.do_soon(lambda tx: feed_relays.start_over(tx, self.relay))
            detail = "it has an edit under a clock that another has here; its state is fetched anew"
            raise Refused(Refusal.CURSOR_EXPIRED, detail)

    def _heard(self, news: int) -> None:
        if news:
            self.counts["snapshots_applied"] += news
            self._told()

    async def _offer(self, conversation: Conversation, author: Author) -> None:
        """Offer what the relay lacks, in the order of the operation log, as long as the connection lasts."""
        device = self._device
        while True:
            self._woken.clear()
            due, next_at = device.look(lambda tx: feed_relays.waiting(tx, self.relay, device.clock()))
            if due:
                await self._offer_some(conversation, author, due)
            else:
                await self._pause(POLL_S if next_at is None else (next_at - device.clock()) / SECOND)

    async def _offer_some(self, conversation: Conversation, author: Author, due: Sequence[int]) -> None:
        device = self._device
        claimed = await device.do_soon(lambda tx: feed_relays.claim(tx, device.clock(), due))
        answers = await self._answers(conversation, claimed)
        pairs = [(operation, self._believed(operation, said)) for operation, said in zip(claimed, answers, strict=True)]
        settle = partial(feed_relays.settle, author=author, relay=self.relay, pairs=pairs)
        await device.do_soon(lambda tx: settle(tx, device.clock(), device.random))
        await self._mend(author, pairs)
        self.counts["snapshots_offered"] += len(pairs)
        self._told()

    async def _mend(self, author: Author, pairs: Sequence[tuple[Operation, Answered]]) -> None:
        """React to answers beyond their rows: log refusals, date edits anew, have the author admitted."""
        device, said = self._device, {answered.said.says for _, answered in pairs}
        for operation, answered in pairs:
            if REACTIONS[answered.said.says].level is Level.WARN:
                detail = {"says": str(answered.said.says), "detail": answered.said.detail}
                _log.warning("not taken", relay=self.relay, sequence=operation.sequence, **detail)
        if Refusal.CLOCK_AHEAD in said:
            anew = partial(feed_relays.date_anew, writer=Writer(author, device.pubkey), pairs=pairs)
            await device.do_soon(lambda tx: anew(tx, device.clock(), device.random))
        if Refusal.AUTHOR_NOT_ADMITTED in said and self._admit is not None:
            await self._admit(author)

    async def _answers(self, conversation: Conversation, claimed: Sequence[Operation]) -> list[Said]:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await conversation.publish([operation.event or b"" for operation in claimed])
        except TimeoutError:
            detail = f"no answer within {ANSWER_TIMEOUT_S:g} s"
            return [Said(says=FaultKind.TIMEOUT, detail=detail)] * len(claimed)

    def _believed(self, operation: Operation, said: Said) -> Answered:
        """The answer to an offer; a yes counts only if it is about this snapshot and the relay has signed it."""
        if said.yes is None:
            return Answered(said)
        event_id = feed_documents.read_kept(operation.blob or b"").event.id
        if not isinstance(said.yes, SnapshotYes) or said.yes.event_id != event_id:
            return Answered(Said(says=FaultKind.NOT_UNDERSTOOD, detail="its answer is about something else"))
        named = {"broker_message_id": event_id, "client_message_id": operation.client_message_id}
        yes = msgspec.structs.replace(said.yes, **named)
        doubtful = doubt(yes, operation.client_message_id, self._pubkey)
        if doubtful is not None:
            return Answered(Said(says=FaultKind.NOT_UNDERSTOOD, detail=doubtful))
        return Answered(msgspec.structs.replace(said, yes=yes), yes.standing)

    async def _pause(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(max(min(wait_s, POLL_S), 0.0)):
                await self._woken.wait()
        except TimeoutError:
            return


def _denied(frame: Denied) -> Refused:
    return Refused(refusal_in(frame.detail) or Refusal.UNAVAILABLE, frame.detail)
