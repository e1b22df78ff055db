"""Documents that are changed at random: in several places at once, too late, deleted, and let go of by their relay."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.protocol import snapshot
from holdfast.protocol.clock import VectorClock, dominates, frontier
from holdfast.protocol.history import Draft, Entry, Kind
from holdfast.protocol.snapshot import Operation, Snapshot
from holdfast.relay.snapshots import read_clock

AUTHORS = ("a" * 64, "b" * 64)
NAMES = ("notes/1", "übung", "list", "hot")
DEVICES = ("laptop", "phone", "desk")

Document = tuple[str, str]
Say = Callable[[Draft], Entry]


@dataclass
class Feed:
    """What a relay's tables hold of documents."""

    snapshot: dict[int, dict[str, Any]] = field(default_factory=dict)
    pruned: dict[Document, dict[VectorClock, Snapshot]] = field(default_factory=dict)
    said: dict[int, Snapshot] = field(default_factory=dict)
    made: dict[Document, list[VectorClock]] = field(default_factory=dict)  # every clock that anybody ever had


def publish(random: Random, feed: Feed, say: Say) -> None:
    """Somebody changes a document, knowing some of what was there."""
    document = (random.choice(AUTHORS), random.choice(NAMES))
    clock = _next_clock(random, feed.made.setdefault(document, []))
    if clock in [*map(_clock, _current(feed, document)), *feed.pruned.get(document, {})]:
        return  # the relay says no
    feed.made[document].append(clock)
    said = Snapshot(
        author=document[0],
        kind=40_000 + random.randrange(3),
        d=document[1],
        o=random.choice((Operation.PUT, Operation.DELETE)),
        c=random.choice((None, "note")),
        clock=clock,
        created_at=1_780_000_000 + random.randrange(1000),
        event_id=random.randbytes(32).hex(),
    )
    _take(feed, said, say(_draft(said, random.randint(100, 999))))


def tell_anew(random: Random, feed: Feed, say: Say) -> None:
    """A deletion that the relay has pruned is told again, where the document lives again without knowing of it."""
    for document, pruned in feed.pruned.items():
        current = _current(feed, document)
        for clock, said in pruned.items():
            is_known = any(dominates(_clock(row), clock) or _clock(row) == clock for row in current)
            if not is_known and any(row["o"] == "put" for row in current):
                _take(feed, said, say(_draft(said, random.randint(100, 999))))
                return


def _take(feed: Feed, said: Snapshot, entry: Entry) -> None:
    document = (said.author, said.d)
    current = _current(feed, document)
    pruned = [clock for clock, left in feed.pruned.get(document, {}).items() if left is not said]
    is_late = any(dominates(known, said.clock) for known in (*map(_clock, current), *pruned))
    feed.said[entry.seq] = said
    feed.snapshot[entry.seq] = _row(said, entry, entry.seq if is_late else None)
    for row in [] if is_late else current:
        if dominates(said.clock, _clock(row)):
            row["superseded_seq"] = entry.seq


def _current(feed: Feed, document: Document) -> list[dict[str, Any]]:
    rows = [row for row in feed.snapshot.values() if (row["author"], row["d"]) == document]
    return [row for row in rows if row["superseded_seq"] is None]


def let_go(random: Random, feed: Feed, say: Say) -> None:
    """The relay compacts: a payload, the oldest part of a document's history, or all of a deleted document."""
    documents = sorted({(row["author"], row["d"]) for row in feed.snapshot.values()})
    if not documents:
        return
    document = random.choice(documents)
    rows = [row for row in feed.snapshot.values() if (row["author"], row["d"]) == document]
    superseded = [row for row in rows if row["superseded_seq"] is not None]
    is_deleted = all(row["o"] == "del" for row in rows if row["superseded_seq"] is None)
    if not is_deleted:
        for row in superseded[:1]:
            say(_compacted("payload", document, row["seq"]))
    elif superseded and random.random() < 0.5:
        _drop(feed, document, superseded[: random.randint(1, len(superseded))], "superseded", say)
    else:
        _drop(feed, document, rows, "deleted", say)


def _drop(feed: Feed, document: Document, rows: list[dict[str, Any]], reason: str, say: Say) -> None:
    known = feed.pruned.get(document, {}) | {_clock(row): feed.said[row["seq"]] for row in rows}
    feed.pruned[document] = {clock: known[clock] for clock in frontier(known)}
    for row in rows:
        del feed.snapshot[row["seq"]]
    say(_compacted(reason, document, max(row["seq"] for row in rows)))


def _next_clock(random: Random, made: list[VectorClock]) -> VectorClock:
    known: dict[str, int] = {}
    for clock in random.sample(made, min(len(made), random.randint(0, 3))):
        for device, counter in clock.entries:
            known[device] = max(known.get(device, 0), counter)
    device = random.choice(DEVICES)
    last = max([dict(clock.entries).get(device, 0) for clock in made], default=0)
    known[device] = (known.get(device, 0) if random.random() < 0.1 else last) + 1
    return VectorClock(tuple(sorted(known.items())))


def _draft(said: Snapshot, size: int) -> Draft:
    return Draft(
        kind=Kind.SNAPSHOT,
        destination_kind="feed",
        destination_ref=said.author,
        event_id=bytes.fromhex(said.event_id),
        size=size,
        detail=snapshot.detail(said),
    )


def _compacted(reason: str, document: Document, seq: int) -> Draft:
    return Draft(
        kind=Kind.COMPACTED,
        destination_kind="feed",
        destination_ref=document[0],
        reason=reason,
        detail=seq.to_bytes(8, "big") + document[1].encode(),
    )


def _row(said: Snapshot, entry: Entry, superseded_seq: int | None) -> dict[str, Any]:
    names = ("author", "kind", "d", "c", "created_at")
    own = {"seq": entry.seq, "event_id": entry.event_id, "size": entry.size, "superseded_seq": superseded_seq}
    text = "[" + ",".join(f'["{device}",{counter}]' for device, counter in said.clock.entries) + "]"
    return {**{name: getattr(said, name) for name in names}, **own, "o": said.o.value, "clock": text}


def _clock(row: dict[str, Any]) -> VectorClock:
    return read_clock(row["clock"])
