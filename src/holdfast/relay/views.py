"""Views of the relay's state for those who may see it: a mesh for its members, grants for their owner."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.relay import queue
from holdfast.store import history
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "views.sql")

MESH_SHAPE = 2
"""The version of a mesh's document, part of its tag: raise it whenever the same rows give another document."""


class Sight(msgspec.Struct, frozen=True):
    """A document and its tag; the document is None if the reader has it already."""

    tag: str
    document: dict[str, Any] | None


def mesh(
    transaction: Transaction,
    mesh_id: str,
    reader: str,
    *,
    is_operator: bool,
    knows: Callable[[str], bool] = lambda tag: False,
) -> Sight:
    """A mesh with its members and topics, as its members and the operators see it.

    If the reader `knows` the current tag, the document is not read.
    """
    name, revision, _ = _admitted(transaction, mesh_id, reader, is_operator)
    # The log id is part of the tag, because a restored relay repeats revision numbers.
    tag = f"{history.head(transaction).log_id.hex()}-{revision}-{MESH_SHAPE}"
    return Sight(tag, None if knows(tag) else _mesh(transaction, mesh_id, name))


def _mesh(transaction: Transaction, mesh_id: str, name: str) -> dict[str, Any]:
    subscribers: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for topic, member, has_key in transaction.rows(_SQL["subscribers"], {"mesh": mesh_id}):
        subscribers[topic].append({"member": member, "has_key": bool(has_key)})
    left = {topic: [member] for topic, member in transaction.rows(_SQL["left"], {"mesh": mesh_id})}
    keys: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for member, pubkey, since, until in transaction.rows(_SQL["keys"], {"mesh": mesh_id}):
        keys[member].append({"pubkey": pubkey, "since": since, "until": until})
    return {
        "mesh": mesh_id,
        "name": name,
        "members": [
            {
                "member": member,
                "pubkey": pubkey,
                "name": member_name,
                "role": role,
                "status": status,
                "keys": keys[member],
            }
            for member, pubkey, member_name, role, status in transaction.rows(_SQL["members"], {"mesh": mesh_id})
        ],
        "topics": [
            {
                "topic": topic,
                "key_epoch": epoch,
                "key_id": key_id,
                "created_by": created_by,
                "subscribers": subscribers[topic],
                "left": left.get(topic, []),
            }
            for topic, epoch, key_id, created_by in transaction.rows(_SQL["topics"], {"mesh": mesh_id})
        ],
    }


def grants(transaction: Transaction, mesh_id: str, topic: str, reader: str) -> dict[str, Any]:
    """The grants of a topic's keys that were sealed to the reader."""
    _, _, member = _admitted(transaction, mesh_id, reader, False)
    found = transaction.rows(_SQL["topic"], {"mesh": mesh_id, "topic": topic})
    if not found:
        raise Refused(Refusal.DESTINATION_UNKNOWN, f"there is no topic {topic}")
    rows = transaction.rows(_SQL["grants"], {"mesh": mesh_id, "topic": topic, "member": member})
    names = ("key_epoch", "key_id", "key", "sealed", "granted_by")
    return {"topic": topic, "key_epoch": found[0][0], "grants": [dict(zip(names, row, strict=True)) for row in rows]}


def counts(transaction: Transaction, now: int) -> dict[str, int]:
    """The gauges of `/metrics` that come from the database, read without counting messages."""
    ((meshes, members, waiting, longest),) = transaction.rows(_SQL["counts"])
    oldest_at = queue.oldest_at(transaction)
    return {
        "meshes": meshes,
        "members": members,
        "deliveries_open": waiting,
        "queue_messages_longest": longest,
        "queue_oldest_age_s": 0 if oldest_at is None else max(0, now - oldest_at) // SECOND,
        "seq": history.head(transaction).seq,
    }


def _admitted(transaction: Transaction, mesh_id: str, reader: str, is_operator: bool) -> tuple[str, int, str | None]:
    """The mesh's name and revision, and the reader's member id; refused unless the reader is a member or an operator."""
    found = transaction.rows(_SQL["mesh"], {"mesh": mesh_id})
    member = transaction.rows(_SQL["reader"], {"mesh": mesh_id, "pubkey": reader})
    if not member and not is_operator:
        raise Refused(Refusal.NOT_A_MEMBER, f"{reader} is no key of a member")
    if not found:
        raise Refused(Refusal.MESH_UNKNOWN, f"there is no mesh {mesh_id}")
    return *found[0], member[0][0] if member else None
