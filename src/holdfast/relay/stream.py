"""A member's queue on one connection: the backlog in the order of the history, then LIVE, then new messages.

One pump reads the rows after the last one it sent, so new messages follow the backlog by themselves, and nothing is kept in
memory for a slow client: when the window of unacknowledged messages is full, the pump waits. Only its acknowledgement takes
a row out of the queue; if the connection ends before, the row stays.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import structlog
from msgspec import Raw

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.relay import closing, neighbours, queue
from holdfast.relay.answer import EVERYBODY
from holdfast.relay.closing import Acknowledged
from holdfast.relay.queue import Page, Standing, Waiting
from holdfast.relay.relay import Relay
from holdfast.relay.settings import QueueSettings
from holdfast.store.engine import Transaction

Say = Callable[[tuple[Any, ...]], Awaitable[None]]
End = Callable[[Refusal], None]

_log = structlog.get_logger(__name__)


class Stream:
    """The queue of one member, while a connection follows it."""

    def __init__(
        self,
        relay: Relay,
        mesh: str,
        standing: Standing,
        sub: str,
        say: Say,
        end: End,
        *,
        connection: int,
        number: int | None = None,
    ) -> None:
        """`connection` orders connections by age; `number` is that of `neighbours.take_queue`, if relays share the database."""
        self.mesh = mesh
        self.member = standing.member
        self.sub = sub
        self.connection = connection
        self.end = end  # ends the connection with a reason
        self.is_live = False
        self.is_paused = False  # the window of unacknowledged messages is full
        self._relay = relay
        self._settings: QueueSettings = relay.settings.queue
        self._standing = standing
        self._number = number
        self._say = say
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        # by position: whether the message had waited in the queue before it was sent
        self._unacknowledged: dict[int, bool] = {}
        self._sent_through = 0

    def wake(self) -> None:
        """Tell the stream to look for new rows, and whether its right to read has ended."""
        self._news.set()
        self._room.set()

    async def run(self, *, replay: bool = False) -> None:
        """Send until cancelled; raises `Refused` when the member may not read on."""
        await self._tell("STATUS", self._standing.shown())
        if replay:
            await self._replay()
        while True:
            self._news.clear()  # before reading, so that rows that come meanwhile wake us again
            page = await self._next_page()
            await self._send(page.messages)
            if page.messages:
                await self._breathe()
                continue
            if not self.is_live:
                self.is_live = True
                await self._tell("LIVE", page.seq)
            await self._news.wait()

    async def acknowledge(self, seqs: Iterable[int]) -> Acknowledged:
        """Close rows that the member has on its disk. One that was not sent on this connection was sent before: it had waited."""
        waited = {seq: self._unacknowledged.get(seq, True) for seq in seqs}
        done = await self._relay.decide(lambda tx: self._close_rows(tx, waited))
        for seq in (*done.closed, *done.unknown):
            self._unacknowledged.pop(seq, None)
        self._room.set()
        return done

    def _close_rows(self, transaction: Transaction, waited: dict[int, bool]) -> Acknowledged:
        self._check_key(transaction)
        return closing.acknowledge(transaction, self._relay.now(), self.mesh, self.member, waited)

    async def _replay(self) -> None:
        """Send again messages that were acknowledged before. Acknowledging them again only makes room in the window."""
        after = 0
        while True:
            limit = await self._free_places()
            page = await self._relay.look(partial(self._read_delivered, after=after, limit=limit))
            if not page.messages:
                return
            for message in page.messages:
                await self._send_one(message, replayed=True)
            after = page.messages[-1].seq
            await self._breathe()

    def _read_delivered(self, transaction: Transaction, *, after: int, limit: int) -> Page:
        self._check_standing(transaction)
        return queue.delivered_before(transaction, self.mesh, self.member, after, self._standing.seq, limit)

    async def _next_page(self) -> Page:
        limit = await self._free_places()
        return await self._relay.look(lambda tx: self._read_waiting(tx, limit))

    def _read_waiting(self, transaction: Transaction, limit: int) -> Page:
        self._check_standing(transaction)
        now = self._relay.now()
        return queue.waiting(transaction, now, self.mesh, self.member, self._sent_through, limit)

    def _check_key(self, transaction: Transaction) -> None:
        """Refuse to go on if this connection's key is no longer the member's."""
        lost = queue.standing_lost(transaction, self.mesh, self.member, self._standing.pubkey)
        if lost is not None:
            raise Refused(lost, f"{self._standing.pubkey} no longer reads this queue")

    def _check_standing(self, transaction: Transaction) -> None:
        """Refuse to go on if the key has changed, or a newer connection at another relay has the queue."""
        self._check_key(transaction)
        if self._number is not None and neighbours.is_taken(transaction, self.mesh, self.member, self._number):
            raise Refused(Refusal.REPLACED_BY_NEWER_CONNECTION, "another relay has it")

    async def _free_places(self) -> int:
        """How many messages may be sent now; waits until there is room for one."""
        while len(self._unacknowledged) >= self._settings.window_messages:
            self.is_paused = True
            self._room.clear()
            await self._relay.look(self._check_standing)  # so that a stream can end although its window is full
            await self._room.wait()
        self.is_paused = False
        return min(self._settings.batch_messages, self._settings.window_messages - len(self._unacknowledged))

    async def _send(self, messages: Iterable[Waiting]) -> None:
        for message in messages:
            fault = message.fault()
            if fault is None:
                await self._send_one(message)
            else:
                await self._set_aside(message, fault)
            self._sent_through = message.seq

    async def _send_one(self, message: Waiting, *, replayed: bool = False) -> None:
        if replayed and message.fault() is not None:
            return  # a replayed message that is gone or damaged: its row was closed long ago
        waited = not self.is_live
        self._unacknowledged[message.seq] = waited
        about = {
            "was_stored": waited,
            "message_id": message.message_id,
            "sender": message.sender,
            "accepted_at": message.accepted_at,
        }
        if replayed:
            about["replayed"] = True
        await self._tell("MSG", message.seq, about, Raw(message.event or b"null"))

    async def _set_aside(self, message: Waiting, fault: str) -> None:
        """Take a message that was damaged on disk out of the queue, and record it for sender, recipient and operator."""
        now, row = self._relay.now, (self.mesh, self.member, message.seq)
        await self._relay.decide(lambda tx: closing.quarantine(tx, now(), *row, fault))
        _log.error("quarantined", mesh=self.mesh, member=self.member, seq=message.seq, detail=fault)

    async def _breathe(self) -> None:
        if not self.is_live:
            await asyncio.sleep(self._settings.pause_ms / 1000)

    async def _tell(self, word: str, *rest: Any) -> None:
        await self._say(("QUEUE", self.sub, word, *rest))


class Streams:
    """All streams at this relay, by member, and the rules for a second connection to a queue."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._policy = relay.settings.queue.second_connection
        self._of: dict[tuple[str, str], list[Stream]] = {}
        # by (mesh, member): the connection that is about to take the queue
        self._taking: dict[tuple[str, str], int] = {}
        self._connections = itertools.count()
        relay.watch_queues(self.wake, self.end)

    def connect(self) -> int:
        """A number for a new connection, higher than those before it."""
        return next(self._connections)

    def is_outdated(self, mesh: str, member: str, connection: int) -> bool:
        """Whether a later connection has the queue or is taking it; requests of a broken connection may come late."""
        if self._policy != "prefer_newest":
            return False
        key = (mesh, member)
        known = (self._taking.get(key, connection), *(stream.connection for stream in self._of.get(key, ())))
        return max(known) > connection

    async def take(self, mesh: str, member: str, connection: int, is_ended: Callable[[], bool]) -> int | None:
        """Take a queue from connections at other relays; returns the number of this taking, if relays share the database.

        A connection that has ended takes nothing: if this relay stood still, its client may have the queue elsewhere by now.
        """
        if not self._relay.is_shared or self._policy != "prefer_newest":
            return None
        self._taking[mesh, member] = connection
        try:
            return await self._relay.decide(lambda tx: None if is_ended() else neighbours.take_queue(tx, mesh, member))
        finally:
            if self._taking.get((mesh, member)) == connection:
                del self._taking[mesh, member]

    def admit(self, stream: Stream) -> Refusal | None:
        """Admit a stream, ending an older one if need be; returns the refusal if it may not begin."""
        key = (stream.mesh, stream.member)
        if key in self._of and self._policy == "prefer_oldest":
            return Refusal.MEMBER_ALREADY_CONNECTED
        if self._policy == "prefer_newest":
            if self.is_outdated(*key, stream.connection):
                return Refusal.REPLACED_BY_NEWER_CONNECTION
            self.end(*key, Refusal.REPLACED_BY_NEWER_CONNECTION)
        self._of.setdefault(key, []).append(stream)  # only now: a stream that was ended may have removed the list
        return None

    def leave(self, stream: Stream) -> None:
        """Remove a stream that has ended."""
        key = (stream.mesh, stream.member)
        left = [other for other in self._of.get(key, []) if other is not stream]
        if left:
            self._of[key] = left
        else:
            self._of.pop(key, None)

    def wake(self, members: Iterable[tuple[str, str]]) -> None:
        for key in members:
            woken = itertools.chain(*self._of.values()) if key == EVERYBODY else self._of.get(key, ())
            for stream in woken:
                stream.wake()

    def end(self, mesh: str, member: str, refusal: Refusal) -> None:
        """End every connection of a member."""
        for stream in list(self._of.get((mesh, member), ())):
            stream.end(refusal)

    @property
    def open(self) -> int:
        return sum(map(len, self._of.values()))

    @property
    def paused(self) -> int:
        streams = itertools.chain(*self._of.values())  # copied at once, because metrics are read on another thread
        return sum(stream.is_paused for stream in streams)
