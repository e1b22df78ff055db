"""The loop that empties the outbox: claims a batch, offers it, and settles it by the answers.

A lane has at most one batch in flight; several lanes may have one at the same time. A batch is claimed in one transaction,
together with its signed events, and settled in another. If the relay does not answer, the whole sender pauses, not lane after
lane.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from holdfast.device import lanes, operations, sending
from holdfast.device.device import Device
from holdfast.device.lanes import Key, Lanes
from holdfast.device.publish import doubt
from holdfast.device.sealer import CannotSeal, Sealer
from holdfast.device.sending import Operation
from holdfast.protocol.outbox import Status
from holdfast.protocol.reaction import REACTIONS, FaultKind, Level, RelaySays
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.schedule import HOUR, SECOND, is_past_max_age, send_wait
from holdfast.store.engine import Transaction
from holdfast.wire.client import RelayClient, Said

ACK_TIMEOUT_S = 15.0  # from the first byte of a batch to the relay's last word on it
BATCHES_MAX = 4  # in flight at once, of different lanes
SEALED_AT_ONCE = 10  # rows, before other tasks get their turn on the event loop
POLL_S = 1.0  # between two looks at the outbox, should a wake-up have been forgotten
BAR_S = 30  # for which a lane that cannot be sealed is skipped, unless keys come before
RESTARTED_AT_ONCE = 100  # rows of a dead process that one transaction takes back
AGED_AT_ONCE = 100

# Faults of a whole batch: other lanes would get the same answer.
_TO_ALL: frozenset[RelaySays] = frozenset({*FaultKind, Refusal.UNAVAILABLE, Refusal.RATE_LIMITED, Refusal.OTHER_LOG})
# Refusals about the sender, not the message. A restored relay may have forgotten this home's mesh or key: everything
# waits until the next connection, which introduces the home again or ends the daemon for good.
_OF_US: frozenset[RelaySays] = frozenset({Refusal.NOT_A_MEMBER, Refusal.MESH_UNKNOWN})
_NO_ANSWER: frozenset[RelaySays] = frozenset({FaultKind.TIMEOUT, FaultKind.CONNECTION_LOST})

_log = structlog.get_logger(__name__)


class Sender:
    """Offers the outbox of one device, while the relay is connected."""

    def __init__(
        self,
        device: Device,
        client: RelayClient,
        sealer: Sealer,
        relay_pubkey: str,
        *,
        told: Callable[[], None] = lambda: None,
        keys_stale: Callable[[], None] = lambda: None,
        troubled: Callable[[str], None] = lambda what: None,
    ) -> None:
        """`told` is called after every change of the log, `keys_stale` when the directory must be fetched anew.

        `troubled` is called with the reason when a whole batch fails.
        """
        self._device = device
        self._client = client
        self._sealer = sealer
        self._relay_pubkey = relay_pubkey
        self._told = told
        self._keys_stale = keys_stale
        self._troubled = troubled
        self._lanes = Lanes()
        self._woken = asyncio.Event()
        self._is_open = False
        self._log_id: bytes | None = None  # of the relay, at the last connection
        self._is_ending = False
        self._in_flight = 0
        self._paused_until = 0
        self._faults = 0  # batches in a row that got no answer
        self._unanswered: set[int] = set()
        # None until the relay was met: nobody knows yet how long it remembers ids, and nothing is offered to it before.
        self.max_age_hours: int | None = None
        self.counts = {"relayed": 0, "put_off": 0, "dead": 0}
        self.has_begun = False  # whether the rows that a dead process had claimed are taken back

    async def run(self) -> None:
        """Take back the rows that a dead process had claimed, then send until `end`."""
        await self._take_back()
        self.has_begun = True
        self._lanes.start_over()
        self._in_flight = 0
        async with asyncio.TaskGroup() as batches:
            while not self._is_ending:
                self._woken.clear()
                claimed = await self._claim() if self._may_claim() else []
                if claimed:
                    self._in_flight += 1
                    batches.create_task(self._offer(claimed))
                else:
                    await self._pause()

    def end(self) -> None:
        """Claim nothing more; `run` returns when everything in flight is settled."""
        self._is_ending = True
        self._woken.set()

    def wake(self) -> None:
        """Look for something to send now."""
        self._woken.set()

    async def open(self, max_age_hours: int, log_id: bytes | None = None) -> None:
        """Begin to offer, now that the relay is connected: everything, and first of all what got no answer.

        Batches name this log of the relay: one that was restored meanwhile refuses them, and has to be connected anew.
        """
        self._log_id = log_id
        unanswered, self._unanswered = self._unanswered, set()
        device = self._device
        newest = await device.do_soon(lambda tx: _made_due(tx, device.clock(), unanswered))
        self.max_age_hours = max_age_hours
        self._faults = self._paused_until = 0
        self._lanes.allow_receipts(newest)
        self._lanes.forget()
        self._is_open = True
        self.wake()

    def shut(self) -> None:
        """Stop offering, because the connection is lost: the relay must first say again which sends it has."""
        self._is_open = False

    def keys_came(self) -> None:
        """Try lanes again that could not be sealed, because keys have come."""
        self._lanes.unbar()
        self.wake()

    def allow_receipts(self, through: int) -> None:
        """Let receipts up to this sequence go: the relay has noted the acknowledgements that they follow."""
        self._lanes.allow_receipts(through)
        self.wake()

    async def age_out(self) -> int:
        """Give up the oldest sends that have waited too long, whether the relay is connected or not; returns how many."""
        device, hours = self._device, self.max_age_hours

        def give_up(transaction: Transaction) -> int:
            now = device.clock()
            old = [] if hours is None else sending.too_old(transaction, now - hours * HOUR, AGED_AT_ONCE)
            old = old or sending.expired_unsent(transaction, now, AGED_AT_ONCE)
            for operation in old:
                sending.age_out(transaction, now, operation, hours)
            return len(old)

        given_up = await device.do_soon(give_up)
        if given_up:
            self._count_dead(given_up)
        return given_up

    def _may_claim(self) -> bool:
        now = self._device.clock()
        return self._is_open and self._in_flight < BATCHES_MAX and lanes.due_at(self._paused_until, now) <= now

    async def _pause(self) -> None:
        """Wait for a wake-up, or until the next lane or the whole sender is due."""
        due_at = max(self._lanes.due_at() or 0, self._paused_until)
        wait_s = (due_at - self._device.clock()) / SECOND if self._is_open else 0.0
        try:
            async with asyncio.timeout(min(wait_s, POLL_S) if wait_s > 0 else POLL_S):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _take_back(self) -> None:
        device = self._device
        while await device.do_soon(lambda tx: _taken_back(tx, device.clock())):
            pass

    async def _claim(self) -> list[Operation]:
        """Claim the next batch, sealed; returns its operations."""
        device = self._device
        now = device.clock()
        taken = device.look(lambda tx: self._lanes.take(tx, now))
        if not taken:
            return []
        sequences = [sequence for lane in taken.values() for sequence in lane]
        found = {op.sequence: op for op in device.look(lambda tx: sending.with_sequences(tx, sequences))}
        pairs: list[tuple[Operation, bytes]] = []
        old: list[Operation] = []
        notes: list[tuple[int, str]] = []
        for lane, lane_sequences in taken.items():
            waiting = [found[sequence] for sequence in lane_sequences if sequence in found]
            old += [op for op in waiting if self._is_too_old(op, now)]
            young = [op for op in waiting if not self._is_too_old(op, now)]
            pairs += await self._sealed(lane, young, notes)
        claimed = await device.do_soon(lambda tx: self._claimed(tx, pairs, old, notes))
        busy = {_lane(operation) for operation in claimed}
        self._lanes.release(taken.keys() - busy)
        if old:
            self._count_dead(len(old))
            self.wake()  # there may be more such rows
        self._told()
        return claimed

    def _is_too_old(self, operation: Operation, now: int) -> bool:
        hours = self.max_age_hours
        is_past = hours is not None and is_past_max_age(operation.enqueued_at, now, hours)
        return is_past or sending.has_expired_unsent(operation, now)

    def _claimed(
        self,
        transaction: Transaction,
        pairs: Sequence[tuple[Operation, bytes]],
        old: Sequence[Operation],
        notes: Sequence[tuple[int, str]],
    ) -> list[Operation]:
        now = self._device.clock()
        for operation in sending.with_sequences(transaction, [operation.sequence for operation in old]):
            if operation.status is Status.PENDING:  # it was not retired meanwhile
                sending.age_out(transaction, now, operation, self.max_age_hours)
        for sequence, reason in notes:
            lanes.note(transaction, sequence, reason)
        return sending.claim_all(transaction, now, pairs)

    async def _sealed(
        self, lane: Key, waiting: Sequence[Operation], notes: list[tuple[int, str]]
    ) -> list[tuple[Operation, bytes]]:
        """The rows of a lane with their events, up to the first that cannot be sealed, because order must be kept."""
        pairs: list[tuple[Operation, bytes]] = []
        for operation in waiting:
            try:
                pairs.append((operation, self._sealer.seal(operation)))
            except CannotSeal as reason:
                self._lanes.bar(lane, self._device.clock() + BAR_S * SECOND)
                if operation.last_error != str(reason):
                    notes.append((operation.sequence, str(reason)))
                    refusal = str(reason.refusal)
                    _log.warning("not sealed", sequence=operation.sequence, refusal=refusal, detail=reason.detail)
                self._keys_stale()
                break
            if len(pairs) % SEALED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return pairs

    async def _offer(self, claimed: Sequence[Operation]) -> None:
        device = self._device
        answers = await self._answers(claimed)
        pairs = list(zip(claimed, answers, strict=True))
        settled = await device.do_soon(lambda tx: sending.settle_all(tx, device.clock(), device.random, pairs))
        self._heed(claimed, answers)
        self._count(settled)
        self._lanes.release({_lane(operation) for operation in claimed})
        self._in_flight -= 1
        self._told()
        self.wake()

    async def _answers(self, claimed: Sequence[Operation]) -> list[Said]:
        events = [operation.event or b"" for operation in claimed]
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                answers = await self._client.publish_all(events, log_id=self._log_id)
        except TimeoutError:
            detail = f"no answer within {ACK_TIMEOUT_S:g} s"
            return [Said(says=FaultKind.TIMEOUT, detail=detail)] * len(events)
        return [self._believed(operation, said) for operation, said in zip(claimed, answers, strict=True)]

    def _believed(self, operation: Operation, said: Said) -> Said:
        """The answer to an operation; a yes counts only if it is about this send and our relay has signed it."""
        if said.says in _OF_US:
            return Said(says=FaultKind.NOT_UNDERSTOOD, detail=f"{said.says}: {said.detail}")
        if said.yes is None:
            return said
        doubtful = doubt(said.yes, operation.client_message_id, self._relay_pubkey)
        return said if doubtful is None else Said(says=FaultKind.NOT_UNDERSTOOD, detail=doubtful)

    def _heed(self, claimed: Sequence[Operation], answers: Sequence[Said]) -> None:
        """React to answers beyond their rows: pause, fetch keys, report trouble."""
        if any(said.says is Refusal.STALE_KEY for said in answers):
            self._keys_stale()
        self._unanswered |= {op.sequence for op, said in zip(claimed, answers, strict=True) if said.says in _NO_ANSWER}
        if all(said.says in _TO_ALL or said.says is Refusal.HELD_BACK for said in answers):
            self._faults += 1
            self._troubled(f"{answers[0].says}: {answers[0].detail}")
            asked_s = max(said.retry_after_s or 0 for said in answers)
            wait = send_wait(self._faults, sending.fraction(self._device.random), asked_s)
            self._paused_until = self._device.clock() + wait
        else:
            self._faults = 0
        for operation, said in zip(claimed, answers, strict=True):
            if REACTIONS[said.says].level is Level.WARN:
                _log.warning("not relayed", sequence=operation.sequence, says=str(said.says), detail=said.detail)

    def _count(self, settled: Sequence[Operation]) -> None:
        for operation in settled:
            name = {Status.DONE: "relayed", Status.DEAD: "dead"}.get(operation.status, "put_off")
            self.counts[name] += 1

    def _count_dead(self, number: int) -> None:
        self.counts["dead"] += number
        _log.warning("gave up what had waited too long, or had expired", count=number, hours=self.max_age_hours)
        self._told()


def _lane(operation: Operation) -> Key:
    return operation.destination_kind, operation.destination_ref


def _taken_back(transaction: Transaction, now: int) -> int:
    return len(sending.restart_all(transaction, now, sending.in_flight(transaction, RESTARTED_AT_ONCE)))


def _made_due(transaction: Transaction, now: int, unanswered: set[int]) -> int:
    """Make rows due now; returns the greatest sequence in the log."""
    lanes.due_again(transaction, now, sorted(unanswered))
    newest = operations.max_sequence(transaction)
    return -1 if newest is None else newest
