"""Taking snapshots: who may publish them, and what each one changes in its document.

The cost depends on the number of current and a few recent snapshots, not on the length of the history. The current ones
that a new snapshot dominates get its position as their `superseded_seq`; one that comes dominated gets its own.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec

from holdfast.protocol import snapshot
from holdfast.protocol.clock import VectorClock
from holdfast.protocol.event import Event
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import HOUR, SECOND, clock_refusal
from holdfast.protocol.snapshot import Operation, Snapshot, Standing
from holdfast.relay.answer import FEED, Answer, refusal_answer
from holdfast.relay.limiter import Limiter
from holdfast.relay.settings import FeedRetention, FeedSettings
from holdfast.store import history
from holdfast.store.engine import Transaction, Value
from holdfast.store.statements import Statements

SQL = Statements(__package__, "snapshots.sql")

Document = tuple[str, str]
"""An author and a document's name `d`."""


class SnapshotOffer(msgspec.Struct, frozen=True):
    """An offered snapshot, and the bytes it came in."""

    event: Event
    said: Snapshot
    raw: bytes

    @property
    def event_id(self) -> bytes:
        return bytes.fromhex(self.event.id)

    @property
    def document(self) -> Document:
        return self.said.author, self.said.d


class Known(msgspec.Struct, frozen=True):
    """A snapshot that was accepted before."""

    seq: int
    superseded_seq: int | None
    is_kept: int

    @property
    def standing(self) -> Standing:
        """Its standing when it was accepted."""
        return Standing.DOMINATED if self.superseded_seq == self.seq else Standing.CURRENT


class _Taken(msgspec.Struct):
    """A snapshot of this batch, before its row is written."""

    offer: SnapshotOffer
    seq: int
    superseded_seq: int | None = None
    is_forgotten: bool = False  # only pruned snapshots dominate it


class Pruned(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """What is kept of a snapshot that was current when its document was pruned."""

    event_id: str
    seq: int
    entries: tuple[tuple[str, int], ...]

    @cached_property
    def clock(self) -> VectorClock:
        return VectorClock(self.entries)


class _Current(msgspec.Struct, frozen=True):
    """A current snapshot of a document."""

    seq: int
    o: str
    clock: VectorClock


def load_known(transaction: Transaction, offers: Iterable[SnapshotOffer]) -> dict[bytes, Known]:
    """Those of the offered events that were accepted before, by event id."""
    wanted = sorted({(offer.event_id,) for offer in offers})
    return {row[0]: Known(*row[1:]) for row in transaction.lookup(SQL["known"], ("event_id",), wanted)}


def load_admitted(transaction: Transaction, offers: Iterable[SnapshotOffer]) -> set[str]:
    """Those of the offers' authors that some member has admitted."""
    wanted = sorted({(offer.said.author,) for offer in offers})
    return {author for (author,) in transaction.lookup(SQL["admitted"], ("author",), wanted)}


def load_remembered(transaction: Transaction, offers: Iterable[SnapshotOffer]) -> set[bytes]:
    """The ids of those of the offered events that a pruned document seems to remember."""
    wanted = sorted({(*offer.document, offer.event.id) for offer in offers})
    return {
        bytes.fromhex(event_id)
        for (event_id,) in transaction.lookup(SQL["remembered"], ("author", "d", "event_id"), wanted)
    }


def repeated(offer: SnapshotOffer, known: Known) -> Answer:
    """The answer to a snapshot that was accepted before: the same as then."""
    members = {
        **_members(offer, known.seq, known.standing),
        "duplicate": True,
        "history_available": bool(known.is_kept),
    }
    return Answer(event_id=offer.event.id, http_status=200, members=members)


class Intake:
    """One batch of the writer: decides on its snapshots and writes those that it accepts."""

    def __init__(self, transaction: Transaction, now: int, feed: FeedSettings, limiter: Limiter) -> None:
        self._transaction = transaction
        self._now = now
        self._feed = feed
        self._limiter = limiter

    def take(self, offers: Sequence[SnapshotOffer]) -> list[Answer]:
        """An answer to every offer, in order; accepted ones are in the history."""
        self._screen(offers)
        self._load(self._documents(offers))
        self._taken: list[_Taken] = []
        self._superseded: dict[int, int] = {}  # position in an earlier batch -> position that superseded it
        self._changed: dict[Document, int] = {}  # the position of each document's last change
        answers = [self._decide(offer) for offer in offers]
        if self._taken:
            self._write()
        return answers

    def _screen(self, offers: Sequence[SnapshotOffer]) -> None:
        """Find what is known and what is refused as far as possible without the documents, which may be large."""
        transaction = self._transaction
        self._known = load_known(transaction, offers)
        self._admitted = set() if self._feed.open else load_admitted(transaction, offers)
        self._head_seq = history.head(transaction).seq
        self._refused: dict[bytes, Answer] = {}
        new = {offer.event_id: offer for offer in offers if offer.event_id not in self._known}
        self._remembered = load_remembered(transaction, new.values())
        for event_id, offer in new.items():
            if event_id in self._remembered:
                continue  # a repetition, as it seems, which costs nothing
            try:
                self._check(offer)
            except Refused as refused:
                self._refused[event_id] = refusal_answer(refused, offer.event.id)

    def _documents(self, offers: Sequence[SnapshotOffer]) -> list[Document]:
        """The documents to look at: what is known or refused needs none."""
        settled = self._known.keys() | self._refused.keys()
        return sorted({offer.document for offer in offers if offer.event_id not in settled})

    def _load(self, documents: Sequence[Document]) -> None:
        transaction = self._transaction
        self._currents: dict[Document, list[_Current]] = defaultdict(list)
        for author, d, seq, o, clock in transaction.lookup(SQL["currents"], ("author", "d"), documents):
            self._currents[author, d].append(_Current(seq, o, read_clock(clock)))
        found = transaction.lookup(SQL["pruned"], ("author", "d"), documents)
        self._pruned = {(author, d): read_pruned(text) for author, d, text in found}

    def _decide(self, offer: SnapshotOffer) -> Answer:
        known = self._known.get(offer.event_id) or self._known_of_pruned(offer)
        if known is not None:
            return repeated(offer, known)
        if offer.event_id in self._refused:
            return self._refused[offer.event_id]
        try:
            if offer.event_id in self._remembered:
                self._check(offer)  # it is no repetition after all
            taken = self._judge(offer)
        except Refused as refused:
            return refusal_answer(refused, offer.event.id)
        self._taken.append(taken)
        known = Known(taken.seq, taken.superseded_seq, int(not taken.is_forgotten))
        self._known[offer.event_id] = known
        members = {**_members(offer, taken.seq, known.standing), "duplicate": False}
        return Answer(event_id=offer.event.id, http_status=201, members=members, wakes=((FEED, offer.said.author),))

    def _check(self, offer: SnapshotOffer) -> None:
        """Refuse a wrong date, author or pace. No snapshot is too old: ids of snapshots are never forgotten."""
        created_at, now = offer.event.created_at, self._now
        if clock_refusal(created_at, now, None) is not None:
            raise Refused(Refusal.CLOCK_AHEAD, f"created_at is {created_at}, here it is {now // SECOND}")
        if not self._feed.open and offer.said.author not in self._admitted:
            raise Refused(Refusal.AUTHOR_NOT_ADMITTED, f"no member admitted the author {offer.said.author}")
        self._limiter.check(offer.event.pubkey, offer.event.id, now)

    def _known_of_pruned(self, offer: SnapshotOffer) -> Known | None:
        """The pruned deletion that this event is; None if the document lives again, because then it must be decided anew."""
        currents = self._currents[offer.document]
        left = next((left for left in self._pruned.get(offer.document, ()) if left.event_id == offer.event.id), None)
        if left is None or any(current.o == Operation.PUT for current in currents):
            return None
        if snapshot.standing(left.clock, (current.clock for current in currents)) is Standing.DOMINATED:
            return None  # it no longer matters
        return Known(left.seq, None, 0)

    def _judge(self, offer: SnapshotOffer) -> _Taken:
        clock, currents = offer.said.clock, self._currents[offer.document]
        seq = self._head_seq + len(self._taken) + 1
        if _is_late(offer, [current.clock for current in currents]):
            return _Taken(offer, seq, superseded_seq=seq)
        # One that a current snapshot dominates makes no difference here: what it dominates, the current one does, too.
        pruned = [left.clock for left in self._pruned.get(offer.document, ()) if left.event_id != offer.event.id]
        if _is_late(offer, pruned):
            return _Taken(offer, seq, superseded_seq=seq, is_forgotten=True)
        replaced = set(snapshot.superseded(clock, [(current.seq, current.clock) for current in currents]))
        if len(currents) - len(replaced) >= self._feed.conflicts_max:
            most = self._feed.conflicts_max
            raise Refused(Refusal.TOO_MANY_CONFLICTS, f"document {offer.said.d} has {most} snapshots side by side")
        self._supersede(replaced, seq)
        kept = [current for current in currents if current.seq not in replaced]
        self._currents[offer.document] = [*kept, _Current(seq, offer.said.o.value, clock)]
        self._changed[offer.document] = seq
        return _Taken(offer, seq)

    def _supersede(self, replaced: set[int], by: int) -> None:
        for seq in replaced:
            if seq > self._head_seq:
                self._taken[seq - self._head_seq - 1].superseded_seq = by
            else:
                self._superseded[seq] = by

    def _write(self) -> None:
        entries = history.append(self._transaction, self._now, [_draft(taken.offer) for taken in self._taken])
        if [entry.seq for entry in entries] != [taken.seq for taken in self._taken]:
            raise RuntimeError("the history did not give the positions that were decided on")
        for seq, by in self._superseded.items():
            self._transaction.run(SQL["supersede"], {"seq": seq, "by": by})
        self._transaction.insert("snapshot", _COLUMNS, (_row(taken, entries[0].at) for taken in self._taken))
        self._drop_resurrected()
        for document in dict.fromkeys(taken.offer.document for taken in self._taken):
            self._describe(document)
            self._let_go(document)

    def _drop_resurrected(self) -> None:
        """Record that payloads were dropped which only a pruned deletion dominates: readers would take the document for live."""
        forgotten = [taken for taken in self._taken if taken.is_forgotten]
        drafts = [compacted("payload", *taken.offer.document, taken.seq, taken.offer.event_id) for taken in forgotten]
        history.append(self._transaction, self._now, drafts)

    def _describe(self, document: Document) -> None:
        """Update the document's own row, unless it only got snapshots that came dominated."""
        currents, (author, d) = self._currents[document], document
        if document in self._changed:
            puts = sum(current.o == Operation.PUT for current in currents)
            row: dict[str, Value] = {"currents": len(currents), "puts": puts, "changed_seq": self._changed[document]}
            self._transaction.run(SQL["describe"], {"author": author, "d": d, **row})

    def _let_go(self, document: Document) -> None:
        """Set when the payloads of a document's unwanted snapshots may be dropped."""
        if self._feed.retention is FeedRetention.FULL_RETENTION:
            return
        with_history = self._feed.retention is FeedRetention.NONDOMINATED_PLUS_RECENT_HISTORY
        places = max(0, self._feed.recent_count - len(self._currents[document])) if with_history else 0
        author, d = document
        at = self._now + self._feed.compact_after_hours * HOUR
        for (seq,) in self._transaction.rows(SQL["recent"], {"author": author, "d": d})[places:]:
            self._transaction.run(SQL["let_go"], {"seq": seq, "at": at})


_COLUMNS = (
    *("seq", "event_id", "author", "kind", "d", "o", "c", "clock"),
    *("created_at", "accepted_at", "superseded_seq", "event", "size"),
)


def _row(taken: _Taken, at: int) -> tuple[Value, ...]:
    said = taken.offer.said
    return (
        *(taken.seq, taken.offer.event_id, said.author, said.kind, said.d, said.o.value, said.c),
        *(write_clock(said.clock), said.created_at, at, taken.superseded_seq),
        *(None if taken.is_forgotten else taken.offer.raw, len(taken.offer.raw)),
    )


def _is_late(offer: SnapshotOffer, clocks: Sequence[VectorClock]) -> bool:
    """Whether one of these clocks dominates the offered one; refused if it is one of them."""
    if offer.said.clock in clocks:
        raise Refused(Refusal.CLOCK_REUSED, f"document {offer.said.d} has another snapshot with this very clock")
    return snapshot.standing(offer.said.clock, clocks) is Standing.DOMINATED


def _draft(offer: SnapshotOffer) -> Draft:
    return Draft(
        kind=Kind.SNAPSHOT,
        destination_kind="feed",
        destination_ref=offer.said.author,
        event_id=offer.event_id,
        size=len(offer.raw),
        detail=snapshot.detail(offer.said),
    )


def compacted(reason: str, author: str, d: str, seq: int, event_id: bytes | None = None) -> Draft:
    """The entry for dropped snapshots. Detail: the position, or the last of several (8 bytes), then the document's name."""
    return Draft(
        kind=Kind.COMPACTED,
        destination_kind="feed",
        destination_ref=author,
        event_id=event_id,
        reason=reason,
        detail=seq.to_bytes(8, "big") + d.encode(),
    )


def _members(offer: SnapshotOffer, seq: int, standing: Standing) -> dict[str, Any]:
    return {"event_id": offer.event.id, "history_id": seq, "standing": standing.value}


def write_clock(clock: VectorClock) -> str:
    """A clock as stored in the database."""
    return msgspec.json.encode(clock.entries).decode()


def read_clock(text: str) -> VectorClock:
    return VectorClock(msgspec.json.decode(text, type=tuple[tuple[str, int], ...]))


def write_pruned(pruned: Iterable[Pruned]) -> str:
    """Pruned snapshots as stored in the database."""
    return msgspec.json.encode(list(pruned)).decode()


def read_pruned(text: str | None) -> list[Pruned]:
    return msgspec.json.decode(text or "[]", type=list[Pruned])
