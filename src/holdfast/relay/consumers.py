"""Readers of the history, by name, each with a checkpoint: what lies behind all of them may be pruned."""

import msgspec

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store import history
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "consumers.sql")


class Consumer(msgspec.Struct, frozen=True):
    """How far somebody has read."""

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
    if log_id != head.log_id:
        raise Refused(Refusal.OTHER_LOG, f"this log is {head.log_id.hex()}")
    if seq > head.seq:
        raise Refused(Refusal.CURSOR_AHEAD, f"the log ends at {head.seq}")
    found = transaction.rows(_SQL["consumer"], {"name": name})
    # After a restore the consumer starts over in the new log, from wherever it says.
    if found and found[0][1] == log_id and seq < found[0][2]:
        raise Refused(Refusal.CHECKPOINT_BACKWARDS, f"the checkpoint is at {found[0][2]}")
    transaction.run(_SQL["move"], {"name": name, "log_id": log_id, "seq": seq, "now": now})
    return find(transaction, name)


def slowest(transaction: Transaction, since: int) -> int | None:
    """The least checkpoint of those who moved after `since`; None if there is nobody to wait for."""
    ((seq,),) = transaction.rows(_SQL["slowest"], {"since": since})
    return None if seq is None else int(seq)
