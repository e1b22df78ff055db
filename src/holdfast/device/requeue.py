"""Requeueing: the content of a stuck or dead row goes to a new row with a new id, in one transaction.

The old row is retired and names the new one, and its id is never free again. So a repeated requeue gets the same answer and
makes no second copy. If the relay may have the old message, it is asked first; without its answer the requeue is refused,
unless an operator forces it, which is recorded. A recipient that has signed a receipt has the message, though a restored
relay has forgotten it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.device import operations, outbox, send
from holdfast.device.ipc_documents import Patch
from holdfast.device.operations import Address, Facts
from holdfast.device.outbox import Committed, Item
from holdfast.device.sending import StatusChanged, called
from holdfast.protocol import payload, ulid
from holdfast.protocol.fingerprint import DestinationKind, Priority
from holdfast.protocol.history import Kind
from holdfast.protocol.outbox import REQUEUES, TRANSITIONS, RelayWord, Signal, Status, word_at_hand
from holdfast.protocol.payload import Payload
from holdfast.protocol.receipt import ReceiptStatus
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tables import move, total
from holdfast.protocol.tags import REFERENCE, shown
from holdfast.store import history
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements
from holdfast.store.world import Random, iso_time

_SQL = Statements(__package__, "requeue.sql")

OPERATOR = "operator"
FORCED = " --force"  # added to `aborted_by` if a row was retired though it may arrive twice
NAMED_MAX = 5  # recipients that a refusal names

_MESSAGES = (DestinationKind.DM, DestinationKind.TOPIC)

_Receiver = tuple[str, str]  # its name, and the status in its receipt
_STORED = ReceiptStatus.STORED.value

_WAITS = (Status.PENDING, Status.DEAD)  # for somebody to requeue it

_WORDS = total(
    {
        RelayWord.NOT_ASKED: "",
        RelayWord.COMMITTED: ", and the relay has it",
        RelayWord.NOT_COMMITTED: ", and the relay does not have it",
        RelayWord.UNREACHABLE: ", and the relay does not say whether it has it",
        RelayWord.RECEIPTED: ", and has arrived: {receivers} signed a receipt for it",
        RelayWord.RECEIPTED_BY_SOME: ", and signed receipts show who has it: {receivers}",
    },
    RelayWord,
)


class Doubt(msgspec.Struct, frozen=True):
    """The question to the relay before a requeue: does it have this event under this id, after this many attempts?

    If `is_older_than_epoch`, any event under this id counts: the log was copied, and the original may have sealed the row
    differently. The id cannot belong to another message, because it was given before there were two logs.
    """

    client_message_id: str
    event_id: bytes | None
    attempts: int
    is_older_than_epoch: bool = False


class Requeued(msgspec.Struct, frozen=True):
    """The result of a requeue: the retired row and its successor."""

    aborted_id: str
    id: str
    client_message_id: str
    sequence: int


def doubt(transaction: Transaction, name: str) -> Doubt | None:
    """The question to the relay before an operation may be requeued; None if there is none."""
    item = outbox.find(transaction, name)
    if item is None or item.destination_kind not in _MESSAGES or _word_at_hand(transaction, item) is not None:
        return None
    return Doubt(item.client_message_id, item.event_id, item.attempts, _is_older_than_epoch(transaction, item))


def requeue(
    transaction: Transaction,
    facts: Facts,
    now: int,
    random: Random,
    name: str,
    *,
    doubt: Doubt | None = None,
    word: RelayWord | None = None,
    committed: Committed | None = None,
    new_client_message_id: str | None = None,
    patch: Patch | None = None,
    force: bool = False,
    by: str = OPERATOR,
) -> Requeued | Refused:
    """Give an operation's content to a new one. A refusal is returned, not raised, so that the relay's answer is kept.

    `word` is the relay's answer to `doubt`, None if there was none. It counts only if `doubt` is still the question to ask: an
    attempt made since then may have changed the answer.
    """
    item = outbox.find(transaction, name)
    if item is None:
        return Refused(Refusal.NOT_FOUND, f"there is no operation {shown(name)} in the log")
    if item.destination_kind not in _MESSAGES:  # under a new id, administration or a receipt would be another one
        kind = "no message" if item.destination_kind is None else f"of the kind {item.destination_kind}"
        return Refused(Refusal.REQUEUE_OF_OTHER, f"operation {item.id} is {kind}")
    try:
        if (before := _repeated(transaction, item, new_client_message_id, patch)) is not None:
            return before
    except Refused as refused:
        return refused
    if doubt is not None and doubt.attempts != item.attempts:
        word = None
    receivers = [(name, status) for name, status in transaction.rows(_SQL["receivers"], {"sequence": item.sequence})]
    known = _word_at_hand(transaction, item) or word or RelayWord.UNREACHABLE
    if receivers and item.status in _WAITS and known is not RelayWord.COMMITTED:
        known = _proven(item, receivers)
    ruling = REQUEUES[item.status, known]
    is_forced = ruling.force_helps and force
    if ruling.refusal is not None and not is_forced:
        if ruling.signal is not None:
            outbox.keep_yes(transaction, facts, now, item, ruling.signal, committed or _known(item))
        why = _WORDS[known].format(receivers=_listed(receivers))
        return Refused(ruling.refusal, f"operation {item.id} is {item.status}{why}")
    try:
        content, address = _successor(transaction, facts, now, random, item, new_client_message_id, patch)
    except Refused as refused:
        return refused
    return _replace(transaction, facts, now, random, item, content, address, by + FORCED if is_forced else by)


def content_of(transaction: Transaction, item: Item) -> Payload | None:
    """The content of a message in the log; None if it was pruned, or if the operation is not a message."""
    ((blob, _, _),) = transaction.rows(_SQL["content"], {"sequence": item.sequence})
    return None if blob is None or item.destination_kind not in _MESSAGES else payload.decode(blob)


def _word_at_hand(transaction: Transaction, item: Item) -> RelayWord | None:
    """The relay's answer, if this log knows it; that a row was never offered counts only if no other log has it."""
    known = word_at_hand(item.status, item.attempts, item.broker_message_id is not None)
    waits = item.status in _WAITS
    return None if known is RelayWord.NOT_ASKED and waits and _is_older_than_epoch(transaction, item) else known


def _is_older_than_epoch(transaction: Transaction, item: Item) -> bool:
    return bool(transaction.rows(_SQL["older_than_epoch"], {"client_message_id": item.client_message_id}))


def _proven(item: Item, receivers: Sequence[_Receiver]) -> RelayWord:
    """What receipts prove. Who could not open it, or has another message under its id, may have to get it anew."""
    has_arrived = item.destination_kind == DestinationKind.DM and all(status == _STORED for _, status in receivers)
    return RelayWord.RECEIPTED if has_arrived else RelayWord.RECEIPTED_BY_SOME


def _listed(receivers: Sequence[_Receiver]) -> str:
    """The recipients by name, the first few of many, with what they said unless they just have it."""
    named = (shown(name) + ("" if status == _STORED else f" ({status})") for name, status in receivers[:NAMED_MAX])
    more = f" and {len(receivers) - NAMED_MAX} more" if len(receivers) > NAMED_MAX else ""
    return ", ".join(named) + more


def _known(item: Item) -> Committed:
    if item.broker_message_id is None:
        raise ValueError("that the relay has something is no word without the id by which it knows it")
    return Committed(broker_message_id=item.broker_message_id, history_id=item.history_id, log_id=item.log_id)


def _successor(
    transaction: Transaction,
    facts: Facts,
    now: int,
    random: Random,
    item: Item,
    new_client_message_id: str | None,
    patch: Patch | None,
) -> tuple[Payload, Address]:
    """The content and address of the new row: the old ones, or the patched ones with a new fingerprint."""
    if new_client_message_id is not None:
        REFERENCE.check(new_client_message_id, "new_client_message_id")
        if send.is_used(transaction, new_client_message_id):
            detail = f"client_message_id {shown(new_client_message_id)} is in use"
            raise Refused(Refusal.IDEMPOTENCY_KEY_REUSED, detail)
    content, request, request_fingerprint = _content(transaction, item, patch)
    expires_at = item.expires_at if patch is None or patch.expires_at is msgspec.UNSET else patch.expires_at
    if expires_at is not None and expires_at <= now:  # it would be given up at once, so it is refused
        raise Refused(Refusal.MALFORMED, f"expires_at {iso_time(expires_at)} has passed; name another, or none")
    return content, Address(
        destination_kind=item.destination_kind,
        destination_ref=item.destination_ref,
        mesh=facts.mesh,
        client_message_id=new_client_message_id or ulid.mint(now, random(ulid.RANDOM_BYTES)),
        priority=Priority(item.priority),
        reply_to=item.reply_to,
        mentions=item.mentions,
        expires_at=expires_at,
        request_fingerprint=request_fingerprint,
        request=request,
    )


def _repeated(
    transaction: Transaction, item: Item, new_client_message_id: str | None, patch: Patch | None
) -> Requeued | None:
    """The result of the requeue that retired this row, if this request repeats it; else None."""
    successor = None if item.superseded_by is None else outbox.find(transaction, item.superseded_by)
    if successor is None or new_client_message_id not in (None, successor.client_message_id):
        return None
    _, _, wanted = _content(transaction, item, patch)
    ((_, _, found),) = transaction.rows(_SQL["content"], {"sequence": successor.sequence})
    if wanted != found:
        return None
    return Requeued(item.id, successor.id, successor.client_message_id, successor.sequence)


def _content(transaction: Transaction, item: Item, patch: Patch | None) -> tuple[Payload, bytes | None, bytes | None]:
    """The content, the caller's request and its fingerprint, of a row or of the patched row."""
    ((blob, request, request_fingerprint),) = transaction.rows(_SQL["content"], {"sequence": item.sequence})
    content = payload.decode(blob)
    if patch is None:
        return content, request, request_fingerprint
    prepared = _patched(content, request, patch)
    return prepared.content, send.kept(prepared.request), prepared.request_fingerprint


def _patched(content: Payload, request: bytes | None, patch: Patch) -> send.Prepared:
    """The request that would have produced the patched message."""
    if request is None:
        raise Refused(Refusal.MALFORMED, "only a message that somebody asked this daemon to send has content to patch")
    asked = msgspec.json.decode(request, type=send.Send)
    message = content.body.decode() if patch.message is msgspec.UNSET else patch.message
    meta = _meta(content) if patch.meta is msgspec.UNSET else patch.meta
    expires_at = asked.expires_at if patch.expires_at is msgspec.UNSET else patch.expires_at
    return send.prepare(msgspec.structs.replace(asked, message=message, meta=meta, expires_at=expires_at))


def _meta(content: Payload) -> dict[str, Any] | None:
    return None if content.meta is None else msgspec.json.decode(content.meta)


def _replace(
    transaction: Transaction,
    facts: Facts,
    now: int,
    random: Random,
    item: Item,
    content: Payload,
    address: Address,
    by: str,
) -> Requeued:
    """Write the new row, and retire the old one, which then names it."""
    status = move(TRANSITIONS, item.status, Signal.REQUEUED)
    _retire(transaction, item, status.value, now, by)
    sequence = operations.append_message(transaction, now, random, content, address)
    successor = called(transaction, address.client_message_id or "")  # not `find`: this id may look like a row's id
    assert successor is not None  # noqa: S101 - written above
    transaction.run(_SQL["name_successor"], {"sequence": item.sequence, "superseded_by": successor.id})
    reason = by if by.endswith(FORCED) else None
    aborted = outbox.entry(facts, item, Kind.ABORTED, reason=reason, detail=successor.id.encode())
    history.append(transaction, now, [aborted])
    return Requeued(item.id, successor.id, successor.client_message_id, sequence)


def _retire(transaction: Transaction, item: Item, status: str, now: int, by: str) -> None:
    parameters = {
        "sequence": item.sequence,
        "was": item.status.value,
        "status": status,
        "now": now,
        "aborted_by": by,
    }
    if not transaction.run(_SQL["retire"], parameters):
        raise StatusChanged(item.sequence, item.status)
