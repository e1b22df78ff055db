"""Documents as people and programs see them: text, current versions, and the versions before."""

from collections.abc import Callable, Mapping

import msgspec

from holdfast.device import feed_documents, feed_relays
from holdfast.device.author import Author
from holdfast.device.feed_documents import SQL, read_clock
from holdfast.protocol import document as documents
from holdfast.protocol.event import decode
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.snapshot import Operation
from holdfast.protocol.tags import is_hex, shown
from holdfast.store.engine import Row, Transaction, Value

PAGE_ROWS = 500

_ID_CHARACTERS = 64


class DocumentVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a document. `relays` says how it stands at each: offered, there, refused, dominated."""

    id: str  # of its event
    status: str  # current, superseded, gone
    operation: str  # put, del
    body: str | None  # None for a deletion, and for what cannot be opened here
    readable: bool
    clock: dict[str, int]
    created_at: int  # microseconds
    known_at: int
    own: bool  # whether it was made in this home
    superseded_by: str | None
    relays: dict[str, str]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A document: `ok` with one version, in `conflict` with several, or `deleted`."""

    id: str
    name: str | None  # None if no version of it can be opened here
    status: str
    changed_at: int  # when its newest version was stored here
    body: str | None  # None in a conflict
    versions: tuple[DocumentVersion, ...]  # the current ones


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A document in a list."""

    id: str
    name: str | None
    status: str
    versions: int
    changed_at: int


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Documents by name; `next_after` is the id after which the next page begins, if there is one."""

    documents: tuple[Summary, ...]
    next_after: str | None


class RelayView(msgspec.Struct, frozen=True, kw_only=True):
    """A relay that keeps the documents, and the position up to which it was followed."""

    relay: str
    is_home: bool
    live: bool
    detail: str
    log_id: str | None
    seq: int | None
    waiting: int  # snapshots that it has not confirmed yet
    refused: int  # current versions that it refuses


def page(transaction: Transaction, *, after: str = "", limit: int = PAGE_ROWS, **filters: bool) -> Page:
    """A page of documents by name, after the one with this id; `deleted` adds deleted ones, `conflicts` drops all others."""
    name = _place(transaction, after) if after else ""
    if filters.get("conflicts", False):
        behind: dict[str, Value] = {"after_name": name, "after_d": after, "limit": limit}
        rows = transaction.rows(SQL["conflicting_documents"], behind)
    else:
        rows = _listed(transaction, name, after, limit, int(filters.get("deleted", False)))
    found = tuple(_summary(row) for row in rows)
    return Page(documents=found, next_after=found[-1].id if len(found) == limit else None)


def _place(transaction: Transaction, d: str) -> str:
    """The name under which a document is listed; empty if its name is not known."""
    rows = transaction.rows(SQL["names"], {"d": d})
    if not rows:
        raise Refused(Refusal.NOT_FOUND, f"there is no document with the id {shown(d)} to go on after")
    current = [name for name, status in rows if status == feed_documents.CURRENT]
    return next((name for name in current or [name for name, _ in rows] if name is not None), "")


def _listed(transaction: Transaction, name: str, d: str, limit: int, with_deleted: int) -> list[Row]:
    """Rows of documents: those without a known name first, then the others by name."""
    found: list[Row] = []
    if not name:
        behind: dict[str, Value] = {"after_d": d, "with_deleted": with_deleted, "limit": limit}
        found = transaction.rows(SQL["nameless_documents"], behind)
        d = ""
    if len(found) < limit:
        rest: dict[str, Value] = {"after_name": name, "after_d": d, "limit": limit - len(found)}
        found += transaction.rows(SQL["documents"], {**rest, "with_deleted": with_deleted})
    return found


def all_documents(transaction: Transaction, author: Author, **filters: bool) -> list[Document]:
    """Every document, with its versions."""
    found: list[Document] = []
    after: str | None = ""
    while after is not None:
        part = page(transaction, after=after, **filters)
        found += [document(transaction, author, one.id) for one in part.documents]
        after = part.next_after
    return found


def document(transaction: Transaction, author: Author, name: str) -> Document:
    """A document by its name, or by its id if no document has that name."""
    every = versions(transaction, author, name)
    current = tuple(version for version in every if version.status == feed_documents.CURRENT)
    d = _id_of(transaction, author, name)
    is_conflict = documents.is_conflict(Operation(version.operation) for version in current)
    is_deleted = not any(version.operation == Operation.PUT for version in current)
    return Document(
        id=d,
        name=_name(transaction, d),
        status="conflict" if is_conflict else "deleted" if is_deleted else "ok",
        changed_at=max(version.known_at for version in every),
        body=None if is_conflict or is_deleted else current[0].body,
        versions=current,
    )


def edited_name(transaction: Transaction, author: Author, name: str) -> str:
    """The name of the document to edit: the given one, or the name of the document with that id."""
    try:
        d = _id_of(transaction, author, name)
    except Refused:
        return name
    if d == documents.document_id(author.secret, name):
        return name
    found = _name(transaction, d)
    if found is None:
        raise Refused(Refusal.UNREADABLE, f"document {shown(name)} cannot be read here, and its name is not known")
    return found


def versions(transaction: Transaction, author: Author, name: str) -> list[DocumentVersion]:
    """The versions of a document that are kept, the newest first."""
    d = _id_of(transaction, author, name)
    return [_version(transaction, author, row) for row in transaction.rows(SQL["versions"], {"d": d})]


def of_version(transaction: Transaction, author: Author, event_id: str) -> Document:
    """The document that a version belongs to, as it is now."""
    found = transaction.rows(SQL["document_of"], {"event_id": _bytes(event_id)})
    if not found:
        raise Refused(Refusal.NOT_FOUND, f"there is no version {shown(event_id)}")
    return document(transaction, author, found[0][0])


def counts(transaction: Transaction) -> dict[str, int]:
    """How many documents there are, and how many of them are in conflict or deleted."""
    ((every, conflicts, deleted),) = transaction.rows(SQL["count_documents"])
    return {"documents": every - deleted, "conflicts": conflicts, "deleted": deleted}


def relays(transaction: Transaction, is_live: Callable[[str], bool], details: Mapping[str, str]) -> list[RelayView]:
    """The relays that keep the documents, this home's own first."""
    return [
        RelayView(
            relay=one.relay,
            is_home=bool(one.is_home),
            live=is_live(one.relay),
            detail="" if is_live(one.relay) else details.get(one.relay, ""),
            log_id=None if one.log_id is None else one.log_id.hex(),
            seq=one.seq,
            waiting=feed_relays.count_waiting(transaction, one.relay),
            refused=feed_relays.count_refused(transaction, one.relay),
        )
        for one in feed_relays.load(transaction)
    ]


def _id_of(transaction: Transaction, author: Author, name: str) -> str:
    for d in (documents.document_id(author.secret, name), name):
        if transaction.rows(SQL["standing"], {"d": d}) or transaction.rows(SQL["versions"], {"d": d}):
            return d
    raise Refused(Refusal.NOT_FOUND, f"there is no document {shown(name)}")


def _name(transaction: Transaction, d: str) -> str | None:
    return next((str(name) for (name,) in transaction.rows(SQL["name_of"], {"d": d})), None)


def _summary(row: Row) -> Summary:
    d, name, count, puts, known_at = row
    status = "deleted" if not puts else "conflict" if count > 1 else "ok"
    return Summary(id=d, name=name, status=status, versions=count, changed_at=known_at)


def _version(transaction: Transaction, author: Author, row: Row) -> DocumentVersion:
    _, event_id, d, o, clock, created_at, known_at, is_own, status, superseded_by, raw = row
    opened = feed_documents.open_event(author, decode(raw), d)
    found: dict[str, str] = dict(transaction.rows(SQL["sightings"], {"event_id": event_id}))
    return DocumentVersion(
        id=event_id.hex(),
        status=status,
        operation=o,
        body=None if opened is None else opened.body,
        readable=opened is not None,
        clock=dict(read_clock(clock).entries),
        created_at=created_at * 1_000_000,
        known_at=known_at,
        own=bool(is_own),
        superseded_by=None if superseded_by is None else superseded_by.hex(),
        relays=found,
    )


def _bytes(event_id: str) -> bytes:
    return bytes.fromhex(event_id) if is_hex(event_id) and len(event_id) == _ID_CHARACTERS else b""
