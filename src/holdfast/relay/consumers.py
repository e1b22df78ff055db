"""Consumers: registered readers of the history, each with a checkpoint. What all of them have passed may be pruned."""

import msgspec

from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store import history
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "consumers.sql")


class Consumer(msgspec.Struct, frozen=True):
    """A registered reader of the history, and its checkpoint."""

    name: str
    log_id: bytes
    seq: int
    registered_at: int
    moved_at: int


def find(transaction: Transaction, name: str) -> Consumer:
    found = transaction.rows(_SQL["consumer"], {"name": name})
    if not found:
        raise Refused(Refusal.CONSUMER_UNKNOWN, f"there is no consumer {name}")
    return Consumer(*found[0])


def move(transaction: Transaction, now: int, name: str, log_id: bytes, seq: int) -> Consumer:
    """Register a consumer, or move its checkpoint forward."""
    head = history.head(transaction)
    if seq < 0:
        raise Refused(Refusal.RANGE_INVALID, f"there is no position {seq}")
    if log_id != head.log_id:
        raise Refused(Refusal.OTHER_LOG, f"this log is {head.log_id.hex()}")
    if seq > head.seq:
        raise Refused(Refusal.CURSOR_AHEAD, f"the log ends at {head.seq}")
    found = transaction.rows(_SQL["consumer"], {"name": name})
    before = Consumer(*found[0]) if found else None
    # After a restore the consumer starts in the new log, at any position.
    if before and before.log_id == log_id and seq < before.seq:
        raise Refused(Refusal.CHECKPOINT_BACKWARDS, f"the checkpoint is at {before.seq}")
    if before is None:
        # Only the registration is recorded: an entry for each move would fill the very history that it reads.
        draft = Draft(kind=Kind.ADMIN, destination_kind="consumer", destination_ref=name)
        history.append(transaction, now, [draft])
    # Repeating an old position is not a move: it does not make sweeps wait for this reader any longer.
    stands_still = before is not None and before.log_id == log_id and seq == before.seq and seq < head.seq
    moved_at = before.moved_at if before and stands_still else now
    transaction.run(_SQL["move"], {"name": name, "log_id": log_id, "seq": seq, "now": now, "moved_at": moved_at})
    return find(transaction, name)


def slowest(transaction: Transaction, since: int) -> int | None:
    """The lowest checkpoint of the consumers that moved after `since`; None if there are none."""
    ((seq,),) = transaction.rows(_SQL["slowest"], {"since": since})
    return None if seq is None else int(seq)


def furthest(transaction: Transaction) -> int:
    """The highest checkpoint of any consumer."""
    ((seq,),) = transaction.rows(_SQL["furthest"])
    return int(seq)
