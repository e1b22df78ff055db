"""What the feed lets go of: payloads that newer snapshots replaced, and whole documents that were deleted long ago.

A payload's row stays, so that whoever replays is told that it was there. A deleted document's rows go; what it knew stays,
so that nothing old can come back, and the feed can be replayed without a gap only from behind it.
"""

from holdfast.protocol.clock import frontier
from holdfast.protocol.history import Draft, Kind
from holdfast.relay.settings import FeedRetention, FeedSettings
from holdfast.relay.snapshots import SQL, Pruned, read_clock, read_pruned, write_pruned
from holdfast.store import history
from holdfast.store.engine import Transaction


def compact(transaction: Transaction, now: int, passed: int, feed: FeedSettings, rows_max: int) -> int:
    """Drop payloads whose time has come; says how many."""
    if feed.retention is FeedRetention.FULL_RETENTION:
        return 0  # since now: some may have got their time under another setting
    rows = transaction.rows(SQL["due"], {"now": now, "passed": passed, "limit": rows_max})
    for seq, *_ in rows:
        transaction.run(SQL["compact"], {"seq": seq})
    history.append(
        transaction, now, [_draft("payload", author, d, seq, event_id) for seq, author, d, event_id, _ in rows]
    )
    return len(rows)


def prune_deleted(transaction: Transaction, now: int, passed: int, feed: FeedSettings, rows_max: int) -> int:
    """Drop the oldest deleted documents of authors who have too many; says how many rows."""
    if feed.retention is FeedRetention.FULL_RETENTION:
        return 0
    gone = 0
    for author, count in transaction.rows(SQL["crowded_authors"], {"kept": feed.tombstones_max}):
        limit = min(count - feed.tombstones_max, rows_max - gone)
        wanted = {"author": author, "passed": passed, "limit": limit}
        for d, pruned in transaction.rows(SQL["oldest_deleted"], wanted):
            gone += _prune(transaction, now, author, d, read_pruned(pruned))
        if gone >= rows_max:
            break
    return gone


def _prune(transaction: Transaction, now: int, author: str, d: str, pruned: list[Pruned]) -> int:
    """Drop a document that was deleted; one that came back after it was dropped before still knows what it knew then."""
    document = {"author": author, "d": d}
    for event_id, seq, clock in transaction.rows(SQL["currents_of"], document):
        pruned.append(Pruned(event_id.hex(), seq, read_clock(clock).entries))
    known = set(frontier(left.clock for left in pruned))
    left = write_pruned(left for left in pruned if left.clock in known)
    ((last_seq, count),) = transaction.rows(SQL["last_of"], document)
    transaction.run(SQL["forget_document"], {**document, "pruned": left, "pruned_seq": last_seq})
    transaction.run(SQL["delete_snapshots"], document)
    transaction.run(SQL["move_min_seq"], {"min_seq": last_seq + 1})
    history.append(transaction, now, [_draft("deleted", author, d, last_seq)])
    return int(count)


def _draft(reason: str, author: str, d: str, seq: int, event_id: bytes | None = None) -> Draft:
    """Detail of `compacted`: the position (8 bytes), or the last one, then the document's name."""
    return Draft(
        kind=Kind.COMPACTED,
        destination_kind="feed",
        destination_ref=author,
        event_id=event_id,
        reason=reason,
        detail=seq.to_bytes(8, "big") + d.encode(),
    )
