"""Sweeps: what has outlived its time goes, in bounded steps, each a transaction with its entries in the history."""

from collections.abc import Callable

from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.schedule import DAY
from holdfast.relay import closing, consumers
from holdfast.relay.settings import Retention
from holdfast.store import history
from holdfast.store.engine import Transaction, Value
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "sweep.sql")

Sweep = Callable[[Transaction, int, Retention], int]
"""One step: what it removed, at most `sweep_rows_max`; fewer means that it is done."""


def expire_deliveries(transaction: Transaction, now: int, retention: Retention) -> int:
    """Close deliveries whose time is up."""
    return closing.expire(transaction, now, retention.sweep_rows_max)


def forget_ids(transaction: Transaction, now: int, retention: Retention) -> int:
    """Forget ids that are past the window in which a repetition is recognised."""
    rows = transaction.rows(_SQL["expired_dedupe"], {"now": now, "limit": retention.sweep_rows_max})
    drafts = []
    for mesh, sender, client_message_id, message_id in rows:
        _run(transaction, "forget_dedupe", mesh=mesh, sender=sender, client_message_id=client_message_id)
        names = {"mesh": mesh, "sender": sender, "client_message_id": client_message_id, "message_id": message_id}
        drafts.append(Draft(kind=Kind.DEDUPE_EXPIRED, **names))
    history.append(transaction, now, drafts)
    return len(rows)


def prune_messages(transaction: Transaction, now: int, retention: Retention) -> int:
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


def drop_old_grants(transaction: Transaction, now: int, retention: Retention) -> int:
    """Drop topic keys that were superseded longer ago than anything can wait in a queue, and a day."""
    return _run(transaction, "old_grants", cutoff=now - (retention.queue_ttl_days + 1) * DAY)


def prune_history(transaction: Transaction, now: int, retention: Retention) -> int:
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
    history.prune(transaction, now, old[-1].seq)
    return len(old)


def passed_by_all(transaction: Transaction, now: int, retention: Retention) -> int:
    """The last position that every reader has passed; one that has not come for long is not waited for."""
    slowest = consumers.slowest(transaction, now - retention.history_hold_days * DAY)
    return history.head(transaction).seq if slowest is None else slowest


SWEEPS: dict[str, Sweep] = {
    "expired_deliveries": expire_deliveries,
    "forgotten_ids": forget_ids,
    "pruned_messages": prune_messages,
    "dropped_grants": drop_old_grants,
    "pruned_entries": prune_history,
}


def _run(transaction: Transaction, statement: str, /, **parameters: Value) -> int:
    return transaction.run(_SQL[statement], parameters)
