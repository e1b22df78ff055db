"""Reading the changes feed: the state at a position, the changes after one, and snapshots by id.

Everything is read in pages, each a short transaction: first the snapshots' columns, then the payloads of those that match,
as many as fit. The state at a position never changes, so its pages fit together although others write meanwhile.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.protocol.clock import VectorClock
from holdfast.protocol.feed_filter import Changes
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.snapshot import Operation, Snapshot
from holdfast.store import history
from holdfast.store.engine import Transaction, Value
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "feed.sql")

PAGE_ROWS = 500  # snapshots that are examined for one page
PAGE_BYTES_MAX = 262_144  # of payloads in one page; the last one may exceed it
CREATED_AT_MAX = 2**62

_NO_CLOCK = VectorClock()


class Row(msgspec.Struct, frozen=True):
    """A snapshot without its payload."""

    seq: int
    event_id: bytes
    author: str
    kind: int
    d: str
    o: str
    c: str | None
    created_at: int
    size: int
    is_kept: int

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot's fields that filters match; the clock is left out."""
        return Snapshot(
            author=self.author,
            kind=self.kind,
            d=self.d,
            o=Operation(self.o),
            c=self.c,
            clock=_NO_CLOCK,
            created_at=self.created_at,
            event_id=self.event_id.hex(),
        )


class Item(msgspec.Struct, frozen=True):
    """A snapshot to send; the payload is None if it was compacted."""

    row: Row
    event: bytes | None


class Page(msgspec.Struct, frozen=True):
    """A page of matching snapshots. `last` is the last row examined, matching or not; None if there are no more."""

    items: Sequence[Item]
    last: Row | None


class Bootstrap(msgspec.Struct, frozen=True):
    """Somebody is being handed the state of an author's documents at a position; ALL authors and 0 until these are known."""

    author: str
    seq: int
    began_at: int


def min_seq(transaction: Transaction) -> int:
    """The position from which the feed can be replayed without a gap."""
    return int(transaction.rows(_SQL["min_seq"])[0][0])


def min_created_at(transaction: Transaction) -> int | None:
    """The date, in seconds, of the oldest snapshot whose payload is kept."""
    found: int | None = transaction.rows(_SQL["min_created_at"])[0][0]
    return found


def head_seq(transaction: Transaction) -> int:
    return history.head(transaction).seq


def empty_at(transaction: Transaction, author: str) -> int | None:
    """The head of the history if an author has no snapshots there; None if there are some."""
    return None if transaction.rows(_SQL["any"], {"author": author}) else head_seq(transaction)


def check_cursor(transaction: Transaction, since: int) -> int:
    """Refuse a cursor after which rows were pruned; returns the head of the history."""
    first, head = min_seq(transaction), head_seq(transaction)
    if since + 1 < first:
        raise Refused(Refusal.CURSOR_EXPIRED, f"since {since} is before min_seq {first}")
    if since > head:
        raise Refused(Refusal.CURSOR_AHEAD, f"since {since} is past the last position {head}")
    return head


def check_unpruned(transaction: Transaction, author: str, after: int) -> None:
    """Refuse to continue if rows that were still to be sent have been pruned meanwhile."""
    pruned_seq = transaction.rows(_SQL["pruned_seq"], {"author": author})[0][0]
    if pruned_seq is not None and pruned_seq > after:
        raise Refused(Refusal.CURSOR_EXPIRED, f"position {pruned_seq} was pruned before it was sent, behind {after}")


def changes(transaction: Transaction, wanted: Changes, after: int, until: int) -> Page:
    """The matching snapshots that were accepted between two positions, in order."""
    of_document = _document(wanted)
    name = "changes" if of_document is None else "changes_of_document"
    parameters: dict[str, Value] = {"author": wanted.author, "after": after, "until": until, "limit": PAGE_ROWS}
    rows = _rows(transaction, name, {**parameters, **({} if of_document is None else {"d": of_document})})
    return _page(transaction, rows, [row for row in rows if wanted.match(row.kind, row.d, row.o, row.c)])


def changes_of(
    transaction: Transaction, author: str | None, after: int, until: int, is_wanted: Callable[[Row], bool]
) -> Page:
    """The matching snapshots that one author, or all, published between two positions."""
    name = "changes_of_all" if author is None else "changes"
    parameters: dict[str, Value] = {"after": after, "until": until, "limit": PAGE_ROWS}
    rows = _rows(transaction, name, {**parameters, **({} if author is None else {"author": author})})
    return _page(transaction, rows, [row for row in rows if is_wanted(row)])


def state(transaction: Transaction, wanted: Changes, at: int, after: Row | None) -> Page:
    """The matching snapshots that were current at a position, after a given row, in the order of dates and ids."""
    of_document = _document(wanted)
    name = "state" if of_document is None else "state_of_document"
    parameters: dict[str, Value] = {
        "author": wanted.author,
        "at": at,
        "after_created_at": -1 if after is None else after.created_at,
        "after_event_id": b"" if after is None else after.event_id,
        "limit": PAGE_ROWS,
    }
    rows = _rows(transaction, name, {**parameters, **({} if of_document is None else {"d": of_document})})
    return _page(transaction, rows, [row for row in rows if wanted.match(row.kind, row.d, row.o, row.c)])


def newest(
    transaction: Transaction, author: str | None, at: int, since: int, until: int, after: Row | None
) -> list[Row]:
    """A page of the kept snapshots of one author, or of all, newest first."""
    name = "newest_of_all" if author is None else "newest"
    parameters: dict[str, Value] = {
        "at": at,
        "since": since,
        "before_created_at": until + 1 if after is None else after.created_at,
        "after_event_id": b"\xff" * 32 if after is None else after.event_id,
        "limit": PAGE_ROWS,
    }
    return _rows(transaction, name, {**parameters, **({} if author is None else {"author": author})})


def by_id(transaction: Transaction, event_ids: Iterable[str]) -> list[Row]:
    """The snapshots of these ids that were ever accepted and not pruned."""
    wanted = sorted({(bytes.fromhex(event_id),) for event_id in event_ids})
    return [Row(*row) for row in transaction.lookup(_SQL["by_id"], ("event_id",), wanted)]


def payloads(transaction: Transaction, rows: Sequence[Row]) -> dict[int, bytes | None]:
    """The payloads of a few snapshots, by position."""
    wanted = [(row.seq,) for row in rows if row.is_kept]
    return dict(transaction.lookup(_SQL["payloads"], ("seq",), wanted))


def fitting(rows: Sequence[Row]) -> list[Row]:
    """The first rows whose payloads fit into one page; at least one."""
    size, fit = 0, []
    for row in rows:
        if size >= PAGE_BYTES_MAX:
            break
        fit.append(row)
        size += row.size if row.is_kept else 0
    return fit


def _document(wanted: Changes) -> str | None:
    """The document that a filter asks for, if it is a single one: then the author's others need not be read."""
    d = wanted.tags.d
    return next(iter(d)) if d is not None and len(d) == 1 else None


def _rows(transaction: Transaction, name: str, parameters: dict[str, Value]) -> list[Row]:
    return [Row(*row) for row in transaction.rows(_SQL[name], parameters)]


def _page(transaction: Transaction, looked_at: Sequence[Row], wanted: Sequence[Row]) -> Page:
    fit = fitting(wanted)
    events = payloads(transaction, fit)
    last = looked_at[-1] if looked_at else None
    if len(fit) < len(wanted):
        last = fit[-1]  # the next page starts where this one was full
    return Page([Item(row, events.get(row.seq)) for row in fit], last)
