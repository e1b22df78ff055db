"""Sweeps of the feed: dropping payloads that newer snapshots replaced, and whole documents that were deleted long ago.

The row of a dropped payload stays, so that a replay still tells that it was there. All rows of a deleted document are
dropped, in several steps if its history is long. Its clocks are kept, so that nothing old can come back. After that the
feed can be replayed without a gap only from a later position.
"""

from collections.abc import Collection, Iterable

from holdfast.protocol.clock import frontier
from holdfast.relay.settings import FeedRetention, FeedSettings
from holdfast.relay.snapshots import SQL, Pruned, compacted, read_clock, read_pruned, write_pruned
from holdfast.store import history
from holdfast.store.engine import Transaction, Value

LEFT_CHARACTERS_MAX = 65_536  # of clocks that earlier prunings left of a document that is pruned once more


def compact(transaction: Transaction, now: int, passed: int, settled: int, feed: FeedSettings, rows_max: int) -> int:
    """Drop payloads that are due and were superseded up to the position `settled`; returns how many."""
    if feed.retention is FeedRetention.FULL_RETENTION:
        return 0  # although some may be due by a time that was set under another setting
    rows = transaction.rows(SQL["due"], {"now": now, "passed": passed, "settled": settled, "limit": rows_max})
    for seq, *_ in rows:
        transaction.run(SQL["compact"], {"seq": seq})
    history.append(
        transaction, now, [compacted("payload", author, d, seq, event_id) for seq, author, d, event_id, _ in rows]
    )
    return len(rows)


def prune_deleted(
    transaction: Transaction, now: int, passed: int, spared: Collection[str], feed: FeedSettings, rows_max: int
) -> int:
    """Drop the oldest deleted documents of authors who have too many and are not spared; returns how many rows.

    At most `rows_max`, plus the current snapshots of one document, which are dropped together.
    """
    if feed.retention is FeedRetention.FULL_RETENTION:
        return 0
    gone = 0
    for author, count in transaction.rows(SQL["crowded_authors"], {"kept": feed.tombstones_max}):
        if author in spared:
            continue
        limit = min(count - feed.tombstones_max, rows_max - gone)
        wanted = {"author": author, "passed": passed, "left_max": LEFT_CHARACTERS_MAX, "limit": limit}
        for d, pruned in transaction.rows(SQL["oldest_deleted"], wanted):
            if gone < rows_max:
                gone += _prune(transaction, now, author, d, read_pruned(pruned), rows_max - gone)
        if gone >= rows_max:
            break
    return gone


def _prune(transaction: Transaction, now: int, author: str, d: str, pruned: list[Pruned], rows_max: int) -> int:
    """Drop a deleted document, or the oldest part of its history; returns the number of rows.

    A document that came back after an earlier pruning also keeps the clocks of that one.
    """
    document = {"author": author, "d": d}
    superseded = transaction.rows(SQL["oldest_superseded"], {**document, "limit": rows_max})
    is_long = len(superseded) == rows_max
    currents = [] if is_long else transaction.rows(SQL["currents_of"], document)
    going = [
        Pruned(event_id.hex(), seq, read_clock(clock).entries) for event_id, seq, clock in (*superseded, *currents)
    ]
    seqs = [one.seq for one in going]
    left: dict[str, Value] = {**document, "pruned": _left([*pruned, *going]), "pruned_seq": max(seqs)}
    transaction.run(SQL["shorten_document" if is_long else "forget_document"], left)
    for seq in seqs:
        transaction.run(SQL["delete_snapshot"], {"seq": seq})
    transaction.run(SQL["move_min_seq"], {"min_seq": max(seqs) + 1})
    history.append(transaction, now, [compacted("superseded" if is_long else "deleted", author, d, max(seqs))])
    return len(seqs)


def _left(pruned: Iterable[Pruned]) -> str:
    """The dropped snapshots to remember, as text: those that no other dominates."""
    known = {one.clock: one for one in pruned}
    return write_pruned(known[clock] for clock in frontier(known))
