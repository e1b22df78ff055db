"""Queues, meshes, members, documents and the history of a relay, as its operator looks at them."""

from typing import Any, Literal

import msgspec

from holdfast.console import relay_names
from holdfast.console.listing import PAGE_ROWS, Position, cut
from holdfast.console.relay_names import SQL
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import shown
from holdfast.store import history
from holdfast.store.engine import Transaction, Value

TOPICS_MAX = 200  # of a mesh or member that are shown
KEYS_MAX = 50
CONSUMERS_MAX = 100
AUTHORS_MAX = 50
WAITING_SHOWN = 20  # of a member's queue
SEQ_MAX = 2**63 - 1


class QueueQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which queues."""

    mesh: str | None = None
    sort: Literal["length", "name"] = "length"
    at: Position | None = None  # how many come before: a queue's length has no place of its own


class MeshQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which meshes."""

    name: str | None = None
    at: str | None = None


class MemberQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which members of a mesh."""

    name: str | None = None
    status: Literal["active", "revoked"] | None = None
    at: str | None = None


class DocumentQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which documents; `at` is an author and a document, with a colon between them."""

    author: str | None = None
    conflicts: bool = False
    at: str | None = None


class SeqQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in a history."""

    at: Position | None = None


def queues(transaction: Transaction, query: QueueQuery) -> dict[str, Any]:
    """Queues that are not empty, with when their oldest message was accepted."""
    skip = query.at or 0
    name = "longest_queues" if query.sort == "length" else "queues_by_name"
    found = transaction.rows(SQL[name], {"mesh": query.mesh, "limit": PAGE_ROWS + 1, "skip": skip})
    rows, last = cut(found)
    oldest = [(row[5],) for row in rows if row[5] is not None]
    times: dict[int, int] = dict(transaction.lookup(SQL["times"], ("seq",), oldest)) if oldest else {}
    return {
        "rows": [(*row, times.get(row[5])) for row in rows],
        "following": None if last is None else skip + PAGE_ROWS,
        "meshes": relay_names.meshes(transaction),
    }


def meshes(transaction: Transaction, query: MeshQuery) -> tuple[list[Any], str | None]:
    wanted: dict[str, Value] = {"at": query.at or "", "name": relay_names.like(query.name), "limit": PAGE_ROWS + 1}
    rows, last = cut(transaction.rows(SQL["meshes"], wanted))
    return list(rows), None if last is None else last[0]


def mesh(transaction: Transaction, mesh_id: str, query: MemberQuery) -> dict[str, Any]:
    """A mesh with a page of its members, and its topics."""
    found = transaction.rows(SQL["mesh"], {"mesh": mesh_id})
    if not found:
        raise Refused(Refusal.MESH_UNKNOWN, f"there is no mesh {shown(mesh_id)}")
    wanted: dict[str, Value] = {
        "mesh": mesh_id,
        "at": query.at or "",
        "status": query.status,
        "name": relay_names.like(query.name),
        "limit": PAGE_ROWS + 1,
    }
    rows, last = cut(transaction.rows(SQL["members"], wanted))
    topics = transaction.rows(SQL["topics"], {"mesh": mesh_id, "limit": TOPICS_MAX})
    return {
        "mesh": dict(zip(("mesh", "name", "created_at", "revision"), found[0], strict=True)),
        "rows": rows,
        "following": None if last is None else last[0],
        "topics": topics,
        "names": relay_names.names(transaction, [(mesh_id, row[2]) for row in topics]),
    }


def member(transaction: Transaction, mesh_id: str, member_id: str) -> dict[str, Any]:
    """A member: keys, topics, and the head of its queue."""
    found = transaction.rows(SQL["member"], {"mesh": mesh_id, "member": member_id})
    if not found:
        raise Refused(Refusal.SUBJECT_UNKNOWN, f"mesh {shown(mesh_id)} has no member {shown(member_id)}")
    fields = ("member", "name", "role", "status", "joined_at", "revoked_at", "queue_count")
    whose: dict[str, Value] = {"mesh": mesh_id, "member": member_id}
    return {
        "mesh": mesh_id,
        "member": dict(zip(fields, found[0], strict=True)),
        "keys": transaction.rows(SQL["member_keys"], {**whose, "limit": KEYS_MAX}),
        "topics": transaction.rows(SQL["member_topics"], {**whose, "limit": TOPICS_MAX}),
    }


def feed(transaction: Transaction, query: DocumentQuery) -> dict[str, Any]:
    """The changes feed: where it begins and ends, documents, and who reads how far."""
    author, _, d = (query.at or ":").partition(":")
    wanted: dict[str, Value] = {"author": query.author or author, "d": d, "limit": PAGE_ROWS + 1}
    if query.author is not None:
        name = "conflicting_of" if query.conflicts else "documents_of"
    else:
        name = "conflicting" if query.conflicts else "documents"
    rows, last = cut(transaction.rows(SQL[name], wanted))
    ((min_seq, authors, conflicts),) = transaction.rows(SQL["feed_counts"])
    head = history.head(transaction)
    return {
        "head": head,
        "min_seq": min_seq,
        "authors": authors,
        "conflicts": conflicts,
        "rows": rows,
        "following": None if last is None else f"{last[0]}:{last[1]}",
        "admitted": transaction.rows(SQL["authors"], {"limit": AUTHORS_MAX}),
        "consumers": [
            (name, seq, head.seq - seq if log_id == head.log_id else None, registered_at, moved_at)
            for name, log_id, seq, registered_at, moved_at in transaction.rows(
                SQL["consumers"], {"limit": CONSUMERS_MAX}
            )
        ],
    }


def document(transaction: Transaction, author: str, d: str, query: SeqQuery) -> dict[str, Any]:
    """A document's snapshots, the newest first."""
    found = transaction.rows(SQL["document"], {"author": author, "d": d})
    if not found:
        raise Refused(Refusal.NOT_FOUND, f"there is no document {shown(d)} of this author")
    wanted: dict[str, Value] = {"author": author, "d": d, "at": query.at or SEQ_MAX, "limit": PAGE_ROWS + 1}
    rows, last = cut(transaction.rows(SQL["snapshots"], wanted))
    fields = ("author", "d", "currents", "puts", "changed_seq", "pruned_seq")
    return {
        "document": dict(zip(fields, found[0], strict=True)),
        "rows": rows,
        "following": None if last is None else last[0],
    }


def entries(transaction: Transaction, query: SeqQuery) -> dict[str, Any]:
    """The history itself, the newest first."""
    rows, last = cut(transaction.rows(SQL["entries"], {"at": query.at or SEQ_MAX, "limit": PAGE_ROWS + 1}))
    people = [(row[3], row[column]) for row in rows for column in (5, 6, 8)]
    return {
        "rows": rows,
        "following": None if last is None else last[0],
        "names": relay_names.names(transaction, people),
        "head": history.head(transaction),
    }
