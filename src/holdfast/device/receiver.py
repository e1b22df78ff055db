"""The loop that takes what the relay brings: each event is verified, opened, stored, and only then acknowledged.

Nothing that a signature can show is taken on the relay's word: the event's id, its signature, and that its key is or was the
named sender's. An event that fails this is logged and not stored, but acknowledged all the same, because the relay would
otherwise bring it for ever.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from holdfast.device import arrivals, operations, receipts
from holdfast.device.arrivals import Arrival, Outcome, Stored
from holdfast.device.device import Device
from holdfast.device.directory import Directory
from holdfast.device.operations import Facts
from holdfast.device.sealer import Sealer
from holdfast.protocol import envelope
from holdfast.protocol.envelope import MESSAGE_KIND, Envelope
from holdfast.protocol.event import Event, decode, verify
from holdfast.protocol.payload import Payload
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.receipt import RECEIPT_KIND
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store.engine import Transaction
from holdfast.wire.queue_frames import Acknowledged, AckUnknown, Frame, Live, Queued
from holdfast.wire.relay_socket import RelaySocket, SocketClosed

FRAMES_AT_ONCE = 200  # frames that share one transaction: as many as the relay sends without an acknowledgement

_log = structlog.get_logger(__name__)


class _Brought(msgspec.Struct, frozen=True):
    """A verified event that the relay brought."""

    queued: Queued
    event: Event
    sender: str
    envelope: Envelope | None = None  # of a message, if it is valid
    payload: Payload | None = None


class _Told(msgspec.Struct, frozen=True):
    """The outcomes of a batch, and the log's last sequence after its receipts were added."""

    stored: list[Stored]
    taken: list[receipts.Taken]
    newest: int


class Receiver:
    """Receives the queue of one member."""

    def __init__(
        self,
        device: Device,
        facts: Facts,
        sealer: Sealer,
        directory: Callable[[], Directory],
        *,
        learn: Callable[[], Awaitable[bool]],
        allow_receipts: Callable[[int], None],
        told: Callable[[], None] = lambda: None,
        live: Callable[[], None] = lambda: None,
    ) -> None:
        """`learn` fetches members and keys, and returns whether it could; `live` is called when the backlog is in."""
        self._device = device
        self._facts = facts
        self._sealer = sealer
        self._directory = directory
        self._learn = learn
        self._allow_receipts = allow_receipts
        self._told = told
        self._live = live
        self._url = ""
        # Batches whose acknowledgement the relay has not confirmed yet: positions, and the last sequence of their receipts.
        self._owed: deque[tuple[set[int], int]] = deque()
        self.counts = {"stored": 0, "unreadable": 0, "duplicate": 0, "receipts": 0, "invalid": 0}

    async def run(self, socket: RelaySocket, log_id: bytes) -> None:
        """Receive until the connection ends, which raises."""
        self._owed.clear()
        self._url = socket.url
        while True:
            frames = await socket.receive(FRAMES_AT_ONCE)
            brought = [frame for frame in frames if isinstance(frame, Queued)]
            if brought:
                await self._take(socket, log_id, brought)
            for frame in frames:
                self._hear(frame)

    async def _take(self, socket: RelaySocket, log_id: bytes, queued: Sequence[Queued]) -> None:
        found = await self._known(queued)
        told = await self._device.do_soon(lambda tx: self._write(tx, log_id, found))
        positions = [one.seq for one in queued]
        self._owed.append((set(positions), told.newest))
        self._told()
        await socket.acknowledge(positions)
        self._count(told)

    def _write(self, transaction: Transaction, log_id: bytes, found: Sequence[_Brought]) -> _Told:
        device, facts = self._device, self._facts
        now = device.clock()
        messages = [self._arrival(log_id, one) for one in found if one.event.kind == MESSAGE_KIND]
        stored = arrivals.store(transaction, facts, now, device.random, messages)
        taken = [
            receipts.take(transaction, facts, now, one.event, one.queued.event, one.queued.message_id, one.sender)
            for one in found
            if one.event.kind == RECEIPT_KIND
        ]
        newest = operations.max_sequence(transaction)
        return _Told(stored, taken, -1 if newest is None else newest)

    def _arrival(self, log_id: bytes, one: _Brought) -> Arrival:
        return Arrival(
            event=one.event,
            raw=one.queued.event,
            seq=one.queued.seq,
            log_id=log_id,
            message_id=one.queued.message_id,
            was_stored=one.queued.was_stored,
            sender=one.sender,
            sender_name=self._directory().name_of(one.sender),
            replayed=one.queued.replayed,
            payload=one.payload,
        )

    async def _known(self, queued: Sequence[Queued]) -> list[_Brought]:
        """The authentic events, opened where possible; if a member or a key is unknown, the relay is asked once."""
        events = [(one, self._verified(one)) for one in queued]
        authentic = [(one, event) for one, event in events if event is not None]
        found = [self._look(one, event) for one, event in authentic]
        if any(one is None or self._lacks_key(one) for one in found):
            has_learned = await self._learn()
            found = [self._look(one, event) for one, event in authentic]
            if not has_learned and None in found:  # the sender may have joined a moment ago
                detail = "a sender is not known here, and the mesh could not be looked at"
                raise SocketClosed(self._url, FaultKind.CONNECTION_LOST, detail)
        for (one, event), known in zip(authentic, found, strict=True):
            if known is None:
                self._refuse(one, Refusal.NOT_A_MEMBER, f"the key {event.pubkey} is not member {one.sender}'s")
        return [one for one in found if one is not None]

    def _verified(self, queued: Queued) -> Event | None:
        try:
            event = decode(queued.event)
            if event.kind not in (MESSAGE_KIND, RECEIPT_KIND):
                raise Refused(Refusal.KIND_UNSUPPORTED, f"an event of kind {event.kind} is no message")
            verify(event)
        except Refused as refused:
            self._refuse(queued, refused.refusal, refused.detail)
            return None
        return event

    def _look(self, queued: Queued, event: Event) -> _Brought | None:
        """An event with its content; None if its key is not known to be the sender's."""
        sender = self._directory().member_of(event.pubkey)
        if sender is None or sender != queued.sender:
            return None
        if event.kind == RECEIPT_KIND:
            return _Brought(queued, event, sender)
        try:
            said = envelope.from_event(event)
        except Refused:
            return _Brought(queued, event, sender)  # `arrivals.store` says what is wrong with it
        return _Brought(queued, event, sender, said, self._sealer.open(event, said))

    def _lacks_key(self, one: _Brought) -> bool:
        return one.payload is None and one.envelope is not None and self._sealer.lacks_key(one.envelope)

    def _hear(self, frame: Frame) -> None:
        match frame:
            case Acknowledged():
                self._confirmed(set(frame.seqs))
            case AckUnknown():
                _log.warning("acknowledged what is not ours", detail=frame.detail)
                self._confirmed({seq for seqs, _ in self._owed for seq in seqs})
            case Live():
                self._live()

    def _confirmed(self, seqs: set[int]) -> None:
        """Allow the receipts of messages whose acknowledgements the relay has confirmed, in order."""
        for owed, _ in self._owed:
            owed.difference_update(seqs)
        while self._owed and not self._owed[0][0]:
            _, newest = self._owed.popleft()
            self._allow_receipts(newest)

    def _refuse(self, queued: Queued, refusal: Refusal, detail: str) -> None:
        self.counts["invalid"] += 1
        _log.warning("not a message", seq=queued.seq, sender=queued.sender, refusal=str(refusal), detail=detail)

    def _count(self, told: _Told) -> None:
        for stored in told.stored:
            if stored.outcome.value in self.counts:
                self.counts[stored.outcome.value] += 1
            for what in ("equivocates", "missing_sequence", "reset_from"):
                if getattr(stored, what) is not None:
                    _log.warning(what, seq=stored.seq, sender=stored.sender, found=getattr(stored, what))
            if stored.outcome is Outcome.REFUSED:
                self.counts["invalid"] += 1
                _log.warning("not a message", seq=stored.seq, sender=stored.sender, detail=stored.detail)
        self.counts["receipts"] += sum(taken.taken for taken in told.taken)
        for taken in told.taken:
            if taken.refused or taken.forged or taken.unknown:
                _log.warning("receipt", refused=taken.refused, forged=taken.forged, unknown=taken.unknown)
