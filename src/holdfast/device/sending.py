"""The states of an operation on its way to the relay, inside a transaction: pending, claimed, settled.

Every change is a transition of the outbox's table, applies only to the status it was decided on, and is written together with
its history entry. An attempt has an entry when it begins, and if it settled nothing, another when it ends, with the reason.
"""

from collections.abc import Sequence

import msgspec

from holdfast.device import operations
from holdfast.device.operations import Address
from holdfast.protocol.anchor import Anchor
from holdfast.protocol.envelope import HEAD_TAGS, Head, head_from_tags
from holdfast.protocol.event import Event, check_id, decode
from holdfast.protocol.fingerprint import OBJECT_ID_BYTES, DestinationKind, Priority
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.outbox import TRANSITIONS, Signal, Status, counts
from holdfast.protocol.reaction import REACTIONS, Reaction, RelaySays
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.snapshot import SYNC_KINDS
from holdfast.protocol.tables import move
from holdfast.store import faults, history
from holdfast.store.engine import Row, Transaction
from holdfast.store.statements import Statements
from holdfast.store.world import Random
from holdfast.wire.client import Said, Yes

_SQL = Statements(__package__, "operation_log.sql")

ADMIN = "admin"  # the destination kind of administration; its ref is the mesh
NO_OBJECT = bytes(OBJECT_ID_BYTES)
ERROR_CHARACTERS_MAX = 500  # kept of an error

_FRACTION_BYTES = 4

# Until a topic's keeper is back, a relay that was restored may lack the topic, or the key that it had granted.
_BACK_LATER = frozenset({Refusal.DESTINATION_UNKNOWN, Refusal.MAY_NOT_POST})


class StatusChanged(Exception):
    """The operation's status changed since it was read: a bug, because only one process sends at a time."""

    def __init__(self, sequence: int, was: str) -> None:
        super().__init__(f"operation {sequence} is no longer {was}")


class Operation(msgspec.Struct, frozen=True):
    """An operation as its sender sees it. `event` is the signed event, once there is one."""

    id: str
    sequence: int
    client_message_id: str
    destination_kind: str
    destination_ref: str
    blob: bytes | None  # None if it was pruned after delivery
    event: bytes | None
    status: Status
    enqueued_at: int
    attempts: int
    last_error: str | None
    priority: str = Priority.NEXT.value
    reply_to: str | None = None
    mentions: str = "[]"  # member ids, as JSON
    expires_at: int | None = None


_Move = tuple[Operation, Draft]  # an operation after a change, and its history entry


class Attempt(msgspec.Struct, frozen=True):
    """Detail of `attempted` and `dead`: the number of attempts, and why the last one failed."""

    attempts: int
    error: str = ""

    def encode(self) -> bytes:
        return self.attempts.to_bytes(8, "big") + self.error.encode()

    @classmethod
    def decode(cls, detail: bytes) -> "Attempt":
        return cls(int.from_bytes(detail[:8], "big"), detail[8:].decode())


def encode_anchor(anchor: Anchor) -> bytes:
    """Detail of `relayed`: log id (16 bytes), position (8), chain (32), signature (64)."""
    log_id, chain, sig = (bytes.fromhex(text) for text in (anchor.log_id, anchor.chain, anchor.sig))
    return log_id + anchor.seq.to_bytes(8, "big") + chain + sig


def enqueue(transaction: Transaction, now: int, random: Random, blob: bytes, address: Address) -> Operation:
    """Write an operation to the log; returns it."""
    operations.append_next(transaction, now, random, NO_OBJECT, blob, address)
    found = called(transaction, address.client_message_id or "")
    assert found is not None  # noqa: S101 - written above
    return found


def called(transaction: Transaction, client_message_id: str) -> Operation | None:
    """The operation with this client_message_id."""
    found = transaction.rows(_SQL["operation_called"], {"client_message_id": client_message_id})
    return _operation(found[0], transaction.where) if found else None


def waiting(transaction: Transaction, destination_kind: str, destination_ref: str) -> list[Operation]:
    """The operations to a destination that the relay has not confirmed, in the order of sending."""
    parameters = {"destination_kind": destination_kind, "destination_ref": destination_ref}
    found = transaction.rows(_SQL["waiting_for"], parameters)
    return [_operation(row, transaction.where) for row in found]


def with_sequences(transaction: Transaction, sequences: Sequence[int]) -> list[Operation]:
    """The operations with these sequences, in the order of sending."""
    found = transaction.lookup(_SQL["operations_wanted"], ("sequence",), [(sequence,) for sequence in sequences])
    return sorted((_operation(row, transaction.where) for row in found), key=lambda operation: operation.sequence)


def in_flight(transaction: Transaction, limit: int) -> list[Operation]:
    """Operations that are claimed and not settled."""
    found = transaction.rows(_SQL["in_flight"], {"limit": limit})
    return [_operation(row, transaction.where) for row in found]


def too_old(transaction: Transaction, enqueued_before: int, limit: int) -> list[Operation]:
    """Operations that have waited since before a time."""
    found = transaction.rows(_SQL["too_old"], {"enqueued_before": enqueued_before, "limit": limit})
    return [_operation(row, transaction.where) for row in found]


def expired_unsent(transaction: Transaction, now: int, limit: int) -> list[Operation]:
    """Operations that have expired and were never sent."""
    found = transaction.rows(_SQL["expired_unsent"], {"now": now, "limit": limit})
    return [_operation(row, transaction.where) for row in found]


def waiting_since(transaction: Transaction, operation: Operation) -> int:
    """Since when an operation waits; one that a restored relay lost, since the loss was noticed."""
    return max(operation.enqueued_at, _lost_at(transaction, operation) or 0)


def _lost_at(transaction: Transaction, operation: Operation) -> int | None:
    ((lost_at,),) = transaction.rows(_SQL["lost_at"], {"client_message_id": operation.client_message_id})
    return None if lost_at is None else int(lost_at)


def has_expired_unsent(operation: Operation, now: int) -> bool:
    """Whether one operation has expired and was never sent."""
    return operation.event is None and operation.expires_at is not None and operation.expires_at <= now


def highest_claimed(transaction: Transaction, epoch: bytes) -> int:
    """The greatest sequence that was signed with an epoch; -1 if none was."""
    found = transaction.rows(_SQL["highest_claimed"], {"epoch": epoch})
    return int(found[0][0]) if found else -1


def administration_done(transaction: Transaction) -> list[bytes]:
    """The signed events of the administration that the relay has carried out, in order."""
    return [bytes(event) for (event,) in transaction.rows(_SQL["administration_done"])]


def last_administration(transaction: Transaction) -> Event | None:
    """The last administration event that was signed here."""
    found = transaction.rows(_SQL["last_administration"])
    return _read(found[0][0], transaction.where) if found else None


def claim(transaction: Transaction, now: int, operation: Operation, event: bytes) -> Operation:
    """Claim an operation for an attempt; `event` is what is sent for it from now on."""
    claimed = claim_all(transaction, now, [(operation, event)])
    if not claimed:
        raise StatusChanged(operation.sequence, operation.status)
    return claimed[0]


def claim_all(transaction: Transaction, now: int, pairs: Sequence[tuple[Operation, bytes]]) -> list[Operation]:
    """Claim operations for one attempt; returns those whose status had not changed since they were read."""
    moved = [_claim(transaction, operation, event) for operation, event in pairs]
    claimed = [operation for operation in moved if operation is not None]
    attempts = [
        _draft(operation, Kind.ATTEMPTED, transaction.where, detail=Attempt(operation.attempts + 1).encode())
        for operation in claimed
    ]
    history.append(transaction, now, attempts)
    return claimed


def _claim(transaction: Transaction, operation: Operation, event: bytes) -> Operation | None:
    if operation.event is not None and operation.event != event:
        raise ValueError(f"operation {operation.sequence} has its event already, and that never changes")
    status = move(TRANSITIONS, operation.status, Signal.CLAIMED)
    signed = _read(event, transaction.where)
    parameters = {
        "sequence": operation.sequence,
        "was": operation.status.value,
        "status": status.value,
        "event": event,
        "event_id": bytes.fromhex(signed.id),
        "epoch": None if (head := _head(signed)) is None else head.epoch,
    }
    if not transaction.run(_SQL["claim"], parameters):
        return None
    return msgspec.structs.replace(operation, event=event, status=status)


def settle(transaction: Transaction, now: int, random: Random, operation: Operation, said: Said) -> Operation:
    """Settle an operation in flight by the relay's answer, or by the lack of one."""
    return settle_all(transaction, now, random, [(operation, said)])[0]


def settle_all(
    transaction: Transaction, now: int, random: Random, pairs: Sequence[tuple[Operation, Said]]
) -> list[Operation]:
    """Settle operations that were in flight together, each by its own answer."""
    moves = [_settle(transaction, now, random, operation, said) for operation, said in pairs]
    history.append(transaction, now, [draft for _, draft in moves])
    return [operation for operation, _ in moves]


def _settle(transaction: Transaction, now: int, random: Random, operation: Operation, said: Said) -> _Move:
    reaction = _reaction(transaction, operation, said)
    if said.yes is not None:
        return _confirm(transaction, now, operation, reaction.signal, said.yes)
    wait = reaction.wait(operation.attempts + reaction.counts, fraction(random), said.retry_after_s)
    return _put_back(transaction, now, operation, reaction.signal, said.says, said.detail, wait)


def _reaction(transaction: Transaction, operation: Operation, said: Said) -> Reaction:
    """What an answer does. A post that a restored relay has lost waits for its topic, whose keeper may be back later."""
    is_post = operation.destination_kind == DestinationKind.TOPIC
    if is_post and said.says in _BACK_LATER and _lost_at(transaction, operation) is not None:
        return REACTIONS[Refusal.WAITING_FOR_KEY]
    return REACTIONS[said.says]


def restart_all(transaction: Transaction, now: int, claimed: Sequence[Operation]) -> list[Operation]:
    """Take back operations that a dead process had claimed."""
    detail = "the process that sent it ended before the answer"
    moves = [
        _put_back(transaction, now, operation, Signal.RESTARTED, Signal.RESTARTED, detail) for operation in claimed
    ]
    history.append(transaction, now, [draft for _, draft in moves])
    return [operation for operation, _ in moves]


def age_out(transaction: Transaction, now: int, operation: Operation, hours: int | None) -> Operation:
    """Give up an operation that has expired, or waited so long that the relay might not recognise a repetition."""
    expired = has_expired_unsent(operation, now)
    detail = f"it expired at {operation.expires_at}" if expired else f"it waited for more than {hours} hours"
    aged, draft = _put_back(transaction, now, operation, Signal.AGED_OUT, Refusal.MAX_AGE_PASSED, detail)
    history.append(transaction, now, [draft])
    return aged


def supersede(transaction: Transaction, now: int, operation: Operation, successor: str) -> Operation:
    """Retire a waiting operation, because the one with this id replaces it."""
    status = move(TRANSITIONS, operation.status, Signal.REQUEUED)
    parameters = {
        "sequence": operation.sequence,
        "was": operation.status.value,
        "status": status.value,
        "now": now,
        "aborted_by": "device",
        "superseded_by": successor,
    }
    if not transaction.run(_SQL["abort"], parameters):
        raise StatusChanged(operation.sequence, operation.status)
    draft = _draft(operation, Kind.ABORTED, transaction.where, detail=successor.encode())
    history.append(transaction, now, [draft])
    return msgspec.structs.replace(operation, status=status)


def _confirm(transaction: Transaction, now: int, operation: Operation, signal: Signal, yes: Yes) -> _Move:
    settled = _moved(operation, signal, last_error=None)
    _update(transaction, operation, settled, next_attempt_at=now, delivered_at=now, yes=yes)
    detail = encode_anchor(yes.anchor)
    return settled, _draft(settled, Kind.RELAYED, transaction.where, message_id=yes.broker_message_id, detail=detail)


def _put_back(
    transaction: Transaction,
    now: int,
    operation: Operation,
    signal: Signal,
    reason: RelaySays | Signal,
    detail: str,
    wait: int = 0,
) -> _Move:
    """End an attempt without a yes: the operation waits for the next attempt, or is given up."""
    settled = _moved(operation, signal, last_error=f"{reason}: {detail}"[:ERROR_CHARACTERS_MAX])
    _update(transaction, operation, settled, next_attempt_at=now + wait)
    kind = Kind.DEAD if settled.status is Status.DEAD else Kind.ATTEMPTED
    why = Attempt(settled.attempts, settled.last_error or "").encode()
    return settled, _draft(operation, kind, transaction.where, reason=str(reason), detail=why)


def _moved(operation: Operation, signal: Signal, last_error: str | None) -> Operation:
    return msgspec.structs.replace(
        operation,
        status=move(TRANSITIONS, operation.status, signal),
        attempts=operation.attempts + counts(operation.status, signal),
        last_error=last_error,
        event=None if signal is Signal.KEY_STALE else operation.event,
    )


def _update(
    transaction: Transaction,
    before: Operation,
    after: Operation,
    *,
    next_attempt_at: int,
    delivered_at: int | None = None,
    yes: Yes | None = None,
) -> None:
    changed = transaction.run(
        _SQL["settle"],
        {
            "sequence": before.sequence,
            "was": before.status.value,
            "status": after.status.value,
            "event": after.event,
            "attempts": after.attempts,
            "next_attempt_at": next_attempt_at,
            "last_error": after.last_error,
            "delivered_at": delivered_at,
            "broker_message_id": None if yes is None else yes.broker_message_id,
            "history_id": None if yes is None else yes.history_id,
            "log_id": None if yes is None else bytes.fromhex(yes.log_id),
        },
    )
    if not changed:
        raise StatusChanged(before.sequence, before.status)


def _draft(
    operation: Operation,
    kind: Kind,
    where: str,
    *,
    message_id: str | None = None,
    reason: str | None = None,
    detail: bytes,
) -> Draft:
    """A history entry about an operation, with the names in its event, since the device's epoch may have changed."""
    event = None if operation.event is None else _read(operation.event, where)
    head = None if event is None else _head(event)
    return Draft(
        kind=kind,
        mesh=None if head is None else head.mesh,
        message_id=message_id,
        client_message_id=operation.client_message_id,
        epoch=None if head is None else head.epoch,
        sequence=operation.sequence,
        destination_kind=operation.destination_kind,
        destination_ref=operation.destination_ref,
        event_id=None if event is None else bytes.fromhex(event.id),
        size=None if operation.event is None else len(operation.event),
        reason=reason,
        detail=detail,
    )


def _head(event: Event) -> Head | None:
    """The head of an event, which names its send; a snapshot has none, because it is its author's and not a device's."""
    if event.kind in SYNC_KINDS:
        return None
    return head_from_tags({tag[0]: [tuple(tag[1:])] for tag in event.tags[: len(HEAD_TAGS)]})


def _read(raw: bytes, where: str) -> Event:
    """Decode a kept event; raises Corrupt if it is not what was signed, before a changed byte is sent."""
    try:
        event = decode(raw)
        check_id(event)
    except Refused as refused:
        raise faults.Corrupt(where, f"a signed event is not what was written ({refused.detail})") from refused
    return event


def _operation(row: Row, where: str) -> Operation:
    *fields, object_id, digest = row
    operation = Operation(*fields)
    if operation.blob is not None and operations.blob_digest(operation.sequence, object_id, operation.blob) != digest:
        raise faults.Corrupt(where, f"entry {operation.sequence} is not what was written")
    return msgspec.structs.replace(operation, status=Status(operation.status))


def fraction(random: Random) -> float:
    return int.from_bytes(random(_FRACTION_BYTES), "big") / (1 << 8 * _FRACTION_BYTES)
