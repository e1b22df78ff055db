"""Publishes administration: through the operation log, in order, with the same bytes until the relay has decided.

An operation is on disk before it is sent. If its answer is lost, the next command offers the same bytes again, and the relay
recognises them: nothing is done twice and nothing is forgotten.

A yes counts only if the relay that this home knows has signed it; its anchor is kept, as a proof against the relay.
"""

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import structlog

from holdfast.device import sending
from holdfast.device.device import Device
from holdfast.device.operations import Address
from holdfast.device.sending import ADMIN, Operation
from holdfast.protocol import action as actions
from holdfast.protocol import administration, event, keys
from holdfast.protocol.action import Action, AdvanceTopicKey, CreateMesh, GrantTopicKey, Join, RotateMemberKey
from holdfast.protocol.administration import Administration, next_counter, sign_administration
from holdfast.protocol.anchor import Anchor, is_signed
from holdfast.protocol.envelope import Head
from holdfast.protocol.outbox import Status
from holdfast.protocol.reaction import FaultKind, RelaySays
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import DEDUPE_DAYS_MIN, SECOND, DedupeMode, is_past_max_age, max_age_hours
from holdfast.store.engine import Transaction
from holdfast.wire.client import RelayClient, Said, Yes

# Every relay that is safe to send to remembers ids for longer than this, so none has to be asked.
MAX_AGE_HOURS = max_age_hours(DedupeMode.RETENTION_SCOPED, DEDUPE_DAYS_MIN)

ANCHORS_MAX = 64  # whose signatures are cached: all answers of one commit carry the same anchor

# Reasons that concern one event only: those behind it need not wait, and a later one about the same topic's key replaces it.
_OF_THE_EVENT = frozenset({Refusal.STALE_KEY, Refusal.CLOCK_AHEAD})

# The home refers to these by their client_message_ids, so they cannot be replaced by other operations.
_NAMED = (CreateMesh, Join, RotateMemberKey)


_log = structlog.get_logger(__name__)


class PutOff(Exception):
    """The relay has not decided. If the operation was written (`kept`), the next command offers it again."""

    def __init__(self, url: str, says: RelaySays, detail: str, *, kept: bool) -> None:
        super().__init__(f"{url}: {detail or says}")
        self.url = url
        self.says = says
        self.detail = detail
        self.kept = kept


class Settled(msgspec.Struct, frozen=True):
    """An operation after an attempt, and the relay's answer."""

    operation: Operation
    said: Said

    @property
    def is_done(self) -> bool:
        return self.operation.status is Status.DONE

    @property
    def action(self) -> Action:
        return _action(self.operation)


class Publisher:
    """Offers the administration of one device to the relay with this key."""

    def __init__(self, device: Device, client: RelayClient, relay_pubkey: str) -> None:
        self._device = device
        self._client = client
        self._relay_pubkey = relay_pubkey
        self._put_off: list[Operation] = []
        self.healed: list[Settled] = []  # operations that earlier commands left waiting, now decided

    async def heal(self, mesh: str) -> None:
        """Offer all waiting operations of a mesh, in order. Raises PutOff if the relay does not decide now."""
        self._put_off = []  # these are among what waits
        if not self._device.look(lambda tx: sending.waiting(tx, ADMIN, mesh)):
            return
        for operation in self._device.do(lambda tx: self._make_ready(tx, mesh)):
            settled = await self._offer(operation)
            if settled.operation.status in (Status.DONE, Status.DEAD):
                self.healed.append(settled)
                if not settled.is_done:  # perhaps nobody waits for it: a restored relay refused what it had carried out
                    given_up = settled.operation
                    _log.warning("administration was given up", sequence=given_up.sequence, reason=given_up.last_error)
            elif settled.said.says in _OF_THE_EVENT:
                self._put_off.append(settled.operation)
            else:
                raise self._put_off_by(settled.said, kept=False)

    async def publish(self, mesh: str, action: Action, *, client_message_id: str | None = None) -> Yes:
        """Have the relay carry out an action. Raises `Refused` if it refuses, `PutOff` if it has not decided yet."""
        blob = actions.write_action(action).encode()
        # An earlier command may have asked for the same and died before its answer. Only the last operation counts: one in
        # between may have undone an earlier one.
        if self.healed and self.healed[-1].operation.blob == blob and self.healed[-1].said.yes is not None:
            return self.healed[-1].said.yes
        address, replaced = self._address(mesh, client_message_id), self._replaced_by(action)
        operation = self._device.do(lambda tx: self._claim(tx, self._enqueue(tx, blob, address, replaced)))
        settled = await self._send(operation)
        if settled.operation.status is Status.DEAD:
            assert isinstance(settled.said.says, Refusal)  # noqa: S101 - nothing else ends an operation in flight
            raise Refused(settled.said.says, settled.said.detail)
        if settled.said.yes is None:
            if settled.said.says in _OF_THE_EVENT:
                self._put_off.append(settled.operation)
            raise self._put_off_by(settled.said, kept=True)
        return settled.said.yes

    def _make_ready(self, transaction: Transaction, mesh: str) -> list[Operation]:
        """The waiting operations of a mesh, made fit to be offered: none in flight, and no event too old for the relay.

        An operation whose event is too old is replaced by a new one, and so are all behind it, because the new one's counter
        will be higher than theirs. This is one transaction, because half of it, after a crash, would change their order.
        """
        now = self._device.clock()
        # This process is alone in its home, so whatever is in flight was a dead process's.
        in_flight = [one for one in sending.waiting(transaction, ADMIN, mesh) if one.status is Status.INFLIGHT]
        sending.restart_all(transaction, now, in_flight)
        found = sending.waiting(transaction, ADMIN, mesh)
        first = next((at for at, one in enumerate(found) if _is_outdated(transaction, one, now)), len(found))
        for operation in found[first:]:
            if not isinstance(_action(operation), _NAMED):
                self._enqueue(transaction, operation.blob or b"", self._address(mesh), [operation])
        return sending.waiting(transaction, ADMIN, mesh)

    async def _offer(self, operation: Operation) -> Settled:
        device, now = self._device, self._device.clock()
        if device.look(lambda tx: _has_waited_too_long(tx, operation, now)):
            aged = device.do(lambda tx: sending.age_out(tx, now, operation, MAX_AGE_HOURS))
            return Settled(aged, Said(says=Refusal.MAX_AGE_PASSED, detail=aged.last_error or ""))
        return await self._send(device.do(lambda tx: self._claim(tx, operation)))

    def _address(self, mesh: str, client_message_id: str | None = None) -> Address:
        name = client_message_id or self._device.mint()
        return Address(destination_kind=ADMIN, destination_ref=mesh, mesh=mesh, client_message_id=name)

    async def _send(self, operation: Operation) -> Settled:
        assert operation.event is not None  # noqa: S101 - claimed
        said = await self._client.publish(operation.event)
        doubtful = None if said.yes is None else doubt(said.yes, operation.client_message_id, self._relay_pubkey)
        if doubtful is not None:
            said = Said(says=FaultKind.NOT_UNDERSTOOD, detail=doubtful)
        device = self._device
        settled = device.do(lambda tx: sending.settle(tx, device.clock(), device.random, operation, said))
        return Settled(settled, said)

    def _enqueue(
        self, transaction: Transaction, blob: bytes, address: Address, replaced: Sequence[Operation]
    ) -> Operation:
        device = self._device
        operation = sending.enqueue(transaction, device.clock(), device.random, blob, address)
        for earlier in replaced:
            sending.supersede(transaction, device.clock(), earlier, operation.id)
        return operation

    def _replaced_by(self, action: Action) -> list[Operation]:
        """The operations about the same topic's key that were put off, which this action replaces."""
        if not isinstance(action, GrantTopicKey | AdvanceTopicKey):
            return []
        replaced = [operation for operation in self._put_off if _topic_of(operation) == action.topic]
        self._put_off = [operation for operation in self._put_off if operation not in replaced]
        return replaced

    def _claim(self, transaction: Transaction, operation: Operation) -> Operation:
        """Claim an operation, and sign it unless it was, in one transaction, so that no other gets the same counter."""
        signed = operation.event or event.encode(self._sign(transaction, operation))
        return sending.claim(transaction, self._device.clock(), operation, signed)

    def _sign(self, transaction: Transaction, operation: Operation) -> event.Event:
        last = sending.last_administration(transaction)
        now = self._device.clock()
        asked = Administration(
            head=Head(
                mesh=operation.destination_ref,
                client_message_id=operation.client_message_id,
                epoch=self._device.epoch,
                sequence=operation.sequence,
            ),
            counter=next_counter(None if last is None else administration.from_event(last).counter, now),
            action=_action(operation),
        )
        return sign_administration(self._device.secret, now // SECOND, asked, self._device.random(keys.AUX_BYTES))

    def _put_off_by(self, said: Said, *, kept: bool) -> PutOff:
        return PutOff(self._client.url, said.says, said.detail, kept=kept)


def doubt(yes: Yes, client_message_id: str, relay_pubkey: str) -> str | None:
    """Why a yes of the relay cannot be believed; None if it can."""
    if yes.client_message_id != client_message_id:
        return "its answer is about something else"
    if yes.anchor.log_id != yes.log_id or yes.anchor.seq < yes.history_id:
        return "its signature is for another place of its history than the one it names"
    if not _is_signed(yes.anchor, relay_pubkey):
        return f"its answer is not signed with the key {relay_pubkey}, by which this home knows it"
    return None


@lru_cache(ANCHORS_MAX)
def _is_signed(anchor: Anchor, relay_pubkey: str) -> bool:
    return is_signed(anchor, relay_pubkey)


def _has_waited_too_long(transaction: Transaction, operation: Operation, now: int) -> bool:
    return is_past_max_age(sending.waiting_since(transaction, operation), now, MAX_AGE_HOURS)


def _is_outdated(transaction: Transaction, operation: Operation, now: int) -> bool:
    """Whether an operation that the relay had and lost has an event so old that the relay may refuse it for its date."""
    if operation.event is None or isinstance(_action(operation), _NAMED):
        return False
    signed_at = event.decode(operation.event).created_at * SECOND
    is_old = is_past_max_age(signed_at, now, MAX_AGE_HOURS)
    return is_old and not _has_waited_too_long(transaction, operation, now)


def _action(operation: Operation) -> Action:
    return actions.read_action((operation.blob or b"").decode())


def _topic_of(operation: Operation) -> str | None:
    action = _action(operation)
    return action.topic if isinstance(action, GrantTopicKey | AdvanceTopicKey) else None
