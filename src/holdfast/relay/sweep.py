"""Sweeps: what has outlived its time goes, in bounded steps, each a transaction with its entries in the history."""

from collections.abc import Callable

from holdfast.protocol.anchor import Anchor
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.schedule import CLOCK_AHEAD_MAX, DAY, DEDUPE_KEPT_BEYOND_WINDOW, DedupeMode
from holdfast.relay import closing, consumers
from holdfast.relay.settings import Retention
from holdfast.store import history
from holdfast.store.engine import Transaction, Value
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "sweep.sql")

Sign = Callable[[bytes, int, bytes], Anchor]  # of a position: (log id, seq, chain)

Sweep = Callable[[Transaction, int, Retention, Sign], int]
"""One step: what it removed, at most `sweep_rows_max`; fewer means that it is done."""


def expire_deliveries(transaction: Transaction, now: int, retention: Retention, sign: Sign) -> int:
    """Close deliveries whose time is up."""
    return closing.expire(transaction, now, retention.sweep_rows_max)


def forget_ids(transaction: Transaction, now: int, retention: Retention, sign: Sign) -> int:
    """Forget ids that are past the window in which a repetition is recognised, the one promised and the one set now."""
    if retention.dedupe_mode is DedupeMode.PERMANENT:
        return 0
    cutoff = now - retention.dedupe_retention_days * DAY - DEDUPE_KEPT_BEYOND_WINDOW
    rows = transaction.rows(_SQL["expired_dedupe"], {"now": now, "cutoff": cutoff, "limit": retention.sweep_rows_max})
    if not rows:
        return 0
    drafts = []
    # An event may be dated a little after it was seen; from here on nothing dated before this is taken any more.
    _run(transaction, "note_forgotten", before=max(row[4] for row in rows) + CLOCK_AHEAD_MAX)
    for mesh, sender, client_message_id, message_id, _ in rows:
        _run(transaction, "forget_dedupe", mesh=mesh, sender=sender, client_message_id=client_message_id)
        names = {"mesh": mesh, "sender": sender, "client_message_id": client_message_id, "message_id": message_id}
        drafts.append(Draft(kind=Kind.DEDUPE_EXPIRED, **names))
    history.append(transaction, now, drafts)
    return len(rows)


def prune_messages(transaction: Transaction, now: int, retention: Retention, sign: Sign) -> int:
    """Let go of the bytes of messages that are old and settled; their ids are still recognised."""
    limits = {
        "cutoff": now - retention.message_retention_days * DAY,
        "passed": passed_by_all(transaction, now, retention),
        "limit": retention.sweep_rows_max,
    }
    rows = transaction.rows(_SQL["old_messages"], limits)
    drafts = []
    for seq, mesh, sender, client_message_id, message_id in rows:
        _run(transaction, "flip_available", mesh=mesh, sender=sender, client_message_id=client_message_id)
        for statement in ("delete_message", "delete_deliveries", "delete_mentions"):
            _run(transaction, statement, seq=seq)
        names = {"mesh": mesh, "sender": sender, "client_message_id": client_message_id, "message_id": message_id}
        drafts.append(Draft(kind=Kind.PRUNED, **names))
    history.append(transaction, now, drafts)
    return len(rows)


def drop_old_grants(transaction: Transaction, now: int, retention: Retention, sign: Sign) -> int:
    """Drop topic keys that were superseded longer ago than anything can wait in a queue, and a day."""
    cutoff = now - (retention.queue_ttl_days + 1) * DAY
    rows = transaction.rows(_SQL["old_grants"], {"cutoff": cutoff, "limit": retention.sweep_rows_max})
    drafts = []
    for mesh, topic, key_epoch, member in rows:
        _run(transaction, "drop_grant", mesh=mesh, topic=topic, key_epoch=key_epoch, member=member)
        where = {"destination_kind": "topic", "destination_ref": topic}
        drafts.append(Draft(kind=Kind.PRUNED, mesh=mesh, recipient=member, reason="grant", **where))
    history.append(transaction, now, drafts)
    return len(rows)


def prune_history(transaction: Transaction, now: int, retention: Retention, sign: Sign) -> int:
    """Prune the oldest entries, if there is a limit at all, never past a reader who still comes."""
    if retention.history_retention_days is None:
        return 0
    head = history.head(transaction)
    through = min(head.anchor_seq + retention.sweep_rows_max, passed_by_all(transaction, now, retention))
    if through <= head.anchor_seq:
        return 0
    page = history.read(transaction, head.anchor_seq, through, retention.sweep_rows_max)
    old = [entry for entry in page if entry.at <= now - retention.history_retention_days * DAY]
    if not old:
        return 0
    signature = bytes.fromhex(sign(head.log_id, old[-1].seq, old[-1].chain).sig)
    history.prune(transaction, now, old[-1].seq, signature)
    return len(old)


def passed_by_all(transaction: Transaction, now: int, retention: Retention) -> int:
    """The last position that every reader has passed; nobody is waited for too long, or when there is too much."""
    slowest = consumers.slowest(transaction, now - retention.history_hold_days * DAY)
    if slowest is None or transaction.size_bytes() > retention.history_hold_bytes:
        return history.head(transaction).seq
    return slowest


def forgotten_before(transaction: Transaction) -> int:
    """Up to which date, in microseconds, events may be of an id that was forgotten."""
    return int(transaction.rows(_SQL["forgotten_before"])[0][0])


SWEEPS: dict[str, Sweep] = {
    "expired_deliveries": expire_deliveries,
    "forgotten_ids": forget_ids,
    "pruned_messages": prune_messages,
    "dropped_grants": drop_old_grants,
    "pruned_entries": prune_history,
}


def _run(transaction: Transaction, statement: str, /, **parameters: Value) -> int:
    return transaction.run(_SQL[statement], parameters)
