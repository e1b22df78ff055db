"""Sweeps: they remove what has outlived its time, in bounded steps, each one transaction with its history entries."""

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from holdfast.protocol.anchor import Anchor
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.schedule import CLOCK_AHEAD_MAX, DAY, DEDUPE_KEPT_BEYOND_WINDOW, DedupeMode
from holdfast.relay import closing, consumers, feed_sweep
from holdfast.relay.answer import ALL
from holdfast.relay.feed import Bootstrap
from holdfast.relay.settings import FeedSettings, Retention
from holdfast.store import history
from holdfast.store.engine import Row, Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "sweep.sql")
_ID = ("mesh", "sender", "client_message_id")  # of a send

Sign = Callable[[bytes, int, bytes], Anchor]  # of a position: (log id, seq, chain)

Gone = Counter[str]
"""How many rows a step removed, by owner: `mesh/member` for deliveries, an empty name for all others."""


class Rules(msgspec.Struct, frozen=True):
    """The settings and state that decide what a sweep removes."""

    retention: Retention
    feed: FeedSettings
    sign: Sign
    bootstraps: Sequence[Bootstrap] = ()  # under way


class Swept(msgspec.Struct, frozen=True):
    """What one step removed, and whether the next step may find more."""

    gone: Gone
    has_more: bool = False

    @classmethod
    def rows(cls, count: int, rules: Rules) -> "Swept":
        """The result of a step that removed `count` rows; a full step may have left more."""
        return cls(Gone({"": count}), count >= rules.retention.sweep_rows_max)


Sweep = Callable[[Transaction, int, Rules], Swept]
"""One step, which removes at most `sweep_rows_max` rows."""

_NOTHING = Swept(Gone())


def expire_deliveries(transaction: Transaction, now: int, rules: Rules) -> Swept:
    """Close deliveries whose time is up."""
    expired = closing.expire(transaction, now, rules.retention.sweep_rows_max)
    gone = Gone({f"{mesh}/{member}": count for (mesh, member), count in expired.items()})
    # Not by the number of rows: a step may have examined its maximum of queues and found nothing in them.
    return Swept(gone, closing.is_due(transaction, now))


def forget_ids(transaction: Transaction, now: int, rules: Rules) -> Swept:
    """Forget ids for which both the promised and the configured dedupe window are over."""
    if rules.retention.dedupe_mode is DedupeMode.PERMANENT:
        return _NOTHING
    cutoff = now - rules.retention.dedupe_retention_days * DAY - DEDUPE_KEPT_BEYOND_WINDOW
    rows = transaction.rows(
        _SQL["expired_dedupe"], {"now": now, "cutoff": cutoff, "limit": rules.retention.sweep_rows_max}
    )
    if not rows:
        return _NOTHING
    # An event may be dated a little after it was seen. From now on, events dated before this are refused.
    transaction.run(_SQL["note_forgotten"], {"before": max(row[4] for row in rows) + CLOCK_AHEAD_MAX})
    # Readers of the history are not waited for: the entry of the accept stays, and has the id.
    transaction.lookup(_SQL["forget_dedupe"], _ID, [row[:3] for row in rows])
    history.append(transaction, now, [_named(Kind.DEDUPE_EXPIRED, *row[:4]) for row in rows])
    return Swept.rows(len(rows), rules)


def prune_messages(transaction: Transaction, now: int, rules: Rules) -> Swept:
    """Delete messages that are old and settled; their ids are still recognised."""
    rows = _settled(transaction, now, rules.retention)
    transaction.lookup(_SQL["flip_available"], _ID, [row[1:4] for row in rows])
    for statement in ("delete_message", "delete_deliveries", "delete_mentions"):
        transaction.lookup(_SQL[statement], ("seq",), [row[:1] for row in rows])
    history.append(transaction, now, [_named(Kind.PRUNED, *row[1:]) for row in rows])
    return Swept.rows(len(rows), rules)


def drop_old_grants(transaction: Transaction, now: int, rules: Rules) -> Swept:
    """Delete grants of topic keys that were replaced so long ago that nothing sealed with them can wait in a queue."""
    cutoff = now - (rules.retention.queue_ttl_days + 1) * DAY
    rows = transaction.rows(_SQL["old_grants"], {"cutoff": cutoff, "limit": rules.retention.sweep_rows_max})
    transaction.lookup(_SQL["drop_grant"], ("mesh", "topic", "key_epoch", "member"), rows)
    history.append(transaction, now, [_dropped_grant(mesh, topic, member) for mesh, topic, _, member in rows])
    return Swept.rows(len(rows), rules)


def prune_history(transaction: Transaction, now: int, rules: Rules) -> Swept:
    """Prune the oldest entries, if a retention is set, but none that an active reader has yet to read."""
    if rules.retention.history_retention_days is None:
        return _NOTHING
    head = history.head(transaction)
    through = min(head.anchor_seq + rules.retention.sweep_rows_max, passed_by_all(transaction, now, rules.retention))
    if through <= head.anchor_seq:
        return _NOTHING
    page = history.read(transaction, head.anchor_seq, through, rules.retention.sweep_rows_max)
    old = [entry for entry in page if entry.at <= now - rules.retention.history_retention_days * DAY]
    if not old:
        return _NOTHING
    # Devices are told of every restoration when they connect, even if its entry was pruned.
    restored = [(entry.seq, entry.detail) for entry in old if entry.kind is Kind.RESTORED]
    transaction.insert("restoration", ("seq", "detail"), restored)
    signature = bytes.fromhex(rules.sign(head.log_id, old[-1].seq, old[-1].chain).sig)
    history.prune(transaction, now, old[-1].seq, signature)
    return Swept.rows(len(old), rules)


def compact_snapshots(transaction: Transaction, now: int, rules: Rules) -> Swept:
    """Drop the payloads of superseded snapshots, unless they were superseded since a bootstrap that is under way began."""
    passed = passed_by_all(transaction, now, rules.retention)
    settled = min((bootstrap.seq for bootstrap in rules.bootstraps), default=history.head(transaction).seq)
    count = feed_sweep.compact(transaction, now, passed, settled, rules.feed, rules.retention.sweep_rows_max)
    return Swept.rows(count, rules)


def prune_deleted_documents(transaction: Transaction, now: int, rules: Rules) -> Swept:
    """Drop the oldest deleted documents of authors who have many, and whose documents are not being handed over."""
    authors = {bootstrap.author for bootstrap in rules.bootstraps}
    if ALL in authors:
        return _NOTHING
    # The readers of a bootstrap go on from its position, so what goes may not be later than that.
    passed = min([passed_by_all(transaction, now, rules.retention), *(one.seq for one in rules.bootstraps)])
    count = feed_sweep.prune_deleted(transaction, now, passed, authors, rules.feed, rules.retention.sweep_rows_max)
    return Swept.rows(count, rules)


def passed_by_all(transaction: Transaction, now: int, retention: Retention) -> int:
    """The last position that every reader has passed; readers that stay away too long or hold back too much do not count."""
    slowest = consumers.slowest(transaction, now - retention.history_hold_days * DAY)
    if slowest is not None and transaction.size_bytes() <= retention.history_hold_bytes:
        return slowest
    return consumers.furthest(transaction) if retention.proof_required else history.head(transaction).seq


def _settled(transaction: Transaction, now: int, retention: Retention) -> list[Row]:
    """Messages whose accept and last closing are old, and have been passed by all readers.

    Age counts from the last closing too: the receipt of a message that was acknowledged late comes after it, and needs it.
    """
    cutoff = now - retention.message_retention_days * DAY
    old = transaction.rows(_SQL["last_old_message"], {"cutoff": cutoff})
    if not old:
        return []
    passed = passed_by_all(transaction, now, retention)
    wanted = {"until": min(passed, old[0][0]), "closed_before": min(_unpassed_at(transaction, passed), cutoff + 1)}
    return transaction.rows(_SQL["settled_messages"], {**wanted, "limit": retention.sweep_rows_max})


def _unpassed_at(transaction: Transaction, passed: int) -> int:
    """The time of the entry after this position. Times never go back, so what closed earlier is at or before the position."""
    head = history.head(transaction)
    if passed >= head.seq:
        return head.at + 1
    found = transaction.rows(_SQL["time_at"], {"seq": passed + 1})
    return int(found[0][0]) if found else 0  # unknown: the entry was pruned without waiting for the reader


def forgotten_before(transaction: Transaction) -> int:
    """The date, in microseconds, before which events are refused, because their ids may have been forgotten."""
    return int(transaction.rows(_SQL["forgotten_before"])[0][0])


SWEEPS: dict[str, Sweep] = {
    "expired_deliveries": expire_deliveries,
    "forgotten_ids": forget_ids,
    "pruned_messages": prune_messages,
    "dropped_grants": drop_old_grants,
    "compacted_snapshots": compact_snapshots,
    "pruned_snapshots": prune_deleted_documents,
    "pruned_entries": prune_history,
}


def _named(kind: Kind, mesh: str, sender: str, client_message_id: str, message_id: str) -> Draft:
    """The history entry for an id or a message that was removed."""
    return Draft(kind=kind, mesh=mesh, sender=sender, client_message_id=client_message_id, message_id=message_id)


def _dropped_grant(mesh: str, topic: str, member: str) -> Draft:
    return Draft(
        kind=Kind.PRUNED,
        mesh=mesh,
        recipient=member,
        destination_kind="topic",
        destination_ref=topic,
        reason="grant",
    )
