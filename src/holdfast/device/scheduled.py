"""Sends that are to leave later. Each has its id from the start, but no sequence before its time: then it joins the log.

What a caller is told of one is told by the look-up of ids, which sees these as pending.
"""

import msgspec

from holdfast.device import operations
from holdfast.device.operations import Address, Facts
from holdfast.protocol.fingerprint import Priority
from holdfast.protocol.payload import Payload
from holdfast.store.engine import Row, Transaction
from holdfast.store.statements import Statements
from holdfast.store.world import Random

_SQL = Statements(__package__, "scheduled.sql")

RELEASED_MAX = 100  # sends that one transaction releases


class Scheduled(msgspec.Struct, frozen=True):
    """A send that waits for its time."""

    client_message_id: str
    destination_kind: str
    destination_ref: str
    priority: str
    accepted_at: int
    not_before: int


def keep(transaction: Transaction, now: int, not_before: int, content: Payload, address: Address) -> None:
    """Write down what is to be sent, and when."""
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
        },
    )


def release(transaction: Transaction, facts: Facts, now: int, random: Random, limit: int = RELEASED_MAX) -> int:
    """Give the sends whose time has come their place in the log, the earliest first; says how many."""
    due = transaction.rows(_SQL["due"], {"now": now, "limit": limit})
    for row in due:
        content, address = _read(facts, row)
        sequence = operations.append_message(transaction, now, random, content, address)
        released = {"client_message_id": address.client_message_id, "now": now, "sequence": sequence}
        transaction.run(_SQL["release"], released)
    return len(due)


def next_release_at(transaction: Transaction) -> int | None:
    """When the next one is due."""
    ((earliest,),) = transaction.rows(_SQL["next_release_at"])
    return None if earliest is None else int(earliest)


def waiting(transaction: Transaction, *, after: str = "", limit: int = 50) -> list[Scheduled]:
    """The sends that wait for their time, by id."""
    return [Scheduled(*row) for row in transaction.rows(_SQL["waiting"], {"after": after, "limit": limit})]


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
