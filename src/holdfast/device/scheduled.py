"""Scheduled sends. Each has its id from the start, but gets a sequence in the log only when its time comes.

To the look-up of ids in `send` they are pending. Until a scheduled send has its sequence it can be cancelled; its id is used
up all the same.
"""

import msgspec

from holdfast.device import operations, outbox
from holdfast.device.operations import Address, Facts
from holdfast.protocol.fingerprint import Priority
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.payload import Payload
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import shown
from holdfast.store import history
from holdfast.store.engine import Row, Transaction, Value
from holdfast.store.statements import Statements
from holdfast.store.world import Random

_SQL = Statements(__package__, "scheduled.sql")

RELEASED_MAX = 100  # sends that one transaction releases
CANCELLED = "cancelled"  # the reason in the history, if a send was aborted before it had a sequence


class Scheduled(msgspec.Struct, frozen=True):
    """A scheduled send: waiting, released or cancelled."""

    client_message_id: str
    destination_kind: str
    destination_ref: str
    priority: str
    accepted_at: int
    not_before: int
    sequence: int | None = None  # None until it is released
    cancelled_at: int | None = None


def keep(transaction: Transaction, now: int, not_before: int, content: Payload, address: Address) -> None:
    """Keep a send until its time."""
    transaction.run(
        _SQL["keep"],
        {
            "client_message_id": address.client_message_id,
            "request_fingerprint": address.request_fingerprint,
            "request": address.request,
            "destination_kind": address.destination_kind,
            "destination_ref": address.destination_ref,
            "object_id": content.object_id,
            "meta": content.meta,
            "body": content.body,
            "priority": address.priority.value,
            "reply_to": address.reply_to,
            "mentions": msgspec.json.encode(address.mentions).decode(),
            "expires_at": address.expires_at,
            "accepted_at": now,
            "not_before": not_before,
            "epoch": operations.epoch(transaction),
        },
    )


def release(transaction: Transaction, facts: Facts, now: int, random: Random, limit: int = RELEASED_MAX) -> int:
    """Move the sends whose time has come into the log, the earliest first; returns how many."""
    due = transaction.rows(_SQL["due"], {"now": now, "limit": limit})
    for row in due:
        content, address = _read(facts, row)
        sequence = operations.append_message(transaction, now, random, content, address)
        released = {"client_message_id": address.client_message_id, "now": now, "sequence": sequence}
        transaction.run(_SQL["release"], released)
    return len(due)


def next_release_at(transaction: Transaction) -> int | None:
    """When the next send is due; None if none waits."""
    ((earliest,),) = transaction.rows(_SQL["next_release_at"])
    return None if earliest is None else int(earliest)


def cancel(transaction: Transaction, facts: Facts, now: int, client_message_id: str) -> Scheduled:
    """Cancel a send; a repetition changes nothing. Refused if the send is in the log already."""
    found = find(transaction, client_message_id)
    if found is None or found.sequence is not None:
        raise _not_cancelled(transaction, client_message_id)
    if found.cancelled_at is not None:
        return found
    transaction.run(_SQL["cancel"], {"client_message_id": client_message_id, "now": now})
    cancelled = Draft(
        kind=Kind.ABORTED,
        mesh=facts.mesh,
        client_message_id=client_message_id,
        destination_kind=found.destination_kind,
        destination_ref=found.destination_ref,
        reason=CANCELLED,
    )
    history.append(transaction, now, [cancelled])
    return msgspec.structs.replace(found, cancelled_at=now)


def _not_cancelled(transaction: Transaction, name: str) -> Refused:
    item = outbox.find(transaction, name)
    if item is None:
        return Refused(Refusal.NOT_FOUND, f"no send waits for its time under {shown(name)}")
    return Refused(Refusal.CANCEL_TOO_LATE, f"{shown(name)} has the sequence {item.sequence} and is {item.status}")


def count(transaction: Transaction) -> int:
    """How many scheduled sends wait."""
    ((waiting_now,),) = transaction.rows(_SQL["count"])
    return int(waiting_now)


def find(transaction: Transaction, client_message_id: str) -> Scheduled | None:
    """The scheduled send with this client_message_id, released and cancelled ones included."""
    found = transaction.rows(_SQL["find"], {"client_message_id": client_message_id})
    return Scheduled(*found[0]) if found else None


def waiting(
    transaction: Transaction, *, destination: tuple[str, str] | None = None, after: str = "", limit: int = 50
) -> list[Scheduled]:
    """The scheduled sends that wait, the next first: those to one destination (kind, ref), or all."""
    if after and find(transaction, after) is None:
        raise Refused(Refusal.NOT_FOUND, f"there is no scheduled send {shown(after)} to go on after")
    kind, ref = destination or (None, None)
    wanted: dict[str, Value] = {"after": after, "limit": limit, "destination_kind": kind, "destination_ref": ref}
    return [Scheduled(*row) for row in transaction.rows(_SQL["waiting"], wanted)]


def _read(facts: Facts, row: Row) -> tuple[Payload, Address]:
    client_message_id, request_fingerprint, request, kind, ref, object_id, meta, body, *envelope = row
    priority, reply_to, mentions, expires_at = envelope
    address = Address(
        destination_kind=kind,
        destination_ref=ref,
        mesh=facts.mesh,
        client_message_id=client_message_id,
        priority=Priority(priority),
        reply_to=reply_to,
        mentions=msgspec.json.decode(mentions, type=tuple[str, ...]),
        expires_at=expires_at,
        request_fingerprint=request_fingerprint,
        request=request,
    )
    return Payload(object_id=object_id, meta=meta, body=body), address
