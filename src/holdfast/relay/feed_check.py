"""The check of the feed: it decides again, for every document, which snapshot superseded which."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from holdfast.protocol.clock import VectorClock, dominates
from holdfast.protocol.refusal import Refused
from holdfast.relay.snapshots import read_clock, read_pruned
from holdfast.store.engine import Engine
from holdfast.store.finding import Finding
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "feed_check.sql")

PAGE_DOCUMENTS = 100

Row = tuple[int, int | None, VectorClock]
"""Position, position of the snapshot that superseded it, clock."""


def verify(engine: Engine) -> Iterator[Finding]:
    """A snapshot is superseded by the first one that knew of it, or by itself if one before it did."""
    author, d = "", ""
    while True:
        with engine.read() as transaction:
            page = transaction.rows(_SQL["documents"], {"author": author, "d": d, "limit": PAGE_DOCUMENTS})
            names = [(of_author, name) for of_author, name, _ in page]
            rows = transaction.lookup(_SQL["snapshots"], ("author", "d"), names)
        documents: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for of_author, name, seq, superseded_seq, clock in rows:
            with _readable(f"the clock of snapshot {seq}"):
                documents[of_author, name].append((seq, superseded_seq, read_clock(clock)))
        for of_author, name, pruned in page:
            with _readable(f"what is left of {name}"):
                known = [left.clock for left in read_pruned(pruned)]
            for seq, said, is_so in _wrong(documents[of_author, name], known):
                detail = f"snapshot {seq} of {name} says {said}, and it is {is_so}"
                yield Finding("superseded", verify.__doc__ or "", detail)
        if not page:
            return
        author, d, _ = page[-1]


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, Refused) as error:
        raise ValueError(f"{what} cannot be read: {error}") from error


def _wrong(rows: list[Row], pruned: list[VectorClock]) -> Iterator[tuple[int, int | None, int | None]]:
    """(position, recorded superseded_seq, correct superseded_seq) of each wrong row.

    Current snapshots are enough to compare with: what dominates a snapshot is current, or dominated by a current
    one.
    """
    current: dict[int, VectorClock] = {}
    superseded: dict[int, int] = {}
    for seq, _, clock in rows:
        if any(dominates(known, clock) for known in (*current.values(), *pruned)):
            superseded[seq] = seq
            continue
        for other in [other for other, known in current.items() if dominates(clock, known)]:
            superseded[other] = seq
            del current[other]
        current[seq] = clock
    for seq, said, _ in rows:
        if said != superseded.get(seq):
            yield seq, said, superseded.get(seq)
