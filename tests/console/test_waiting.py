"""What waits at a relay, page by page: the same as if all deliveries were sorted, whoever they are for."""

import random

import pytest

from holdfast.relay.database import prepare
from holdfast.store.engine import Transaction
from holdfast.store.sqlite import MEMORY, SqliteEngine
from holdfast.store.statements import Statements

SQL = Statements("holdfast.console", "relay.sql")
DELIVERY = ("mesh", "member", "seq", "message_id", "state", "expires_at", "closed_at", "is_receipt")
MEMBER = ("mesh", "member", "name", "role", "status", "joined_at", "queue_count")
MEMBERS, POSITIONS = 12, 60
LIMIT = 7


def fill(transaction: Transaction, chance: random.Random) -> set[int]:
    """Messages to one or to many, read by some; which somebody waits for."""
    waiting: set[int] = set()
    counts = [0] * MEMBERS
    for seq in range(1, POSITIONS):
        for number in chance.sample(range(MEMBERS), chance.choice([1, 1, 2, MEMBERS])):
            is_open, is_receipt = chance.random() < 0.4, chance.random() < 0.2
            if is_open and not is_receipt:
                waiting.add(seq)
                counts[number] += 1
            state, closed_at = ("open", None) if is_open else ("dropped", 1)
            transaction.insert(
                "delivery", DELIVERY, [("m", f"p{number}", seq, "", state, 9, closed_at, int(is_receipt))]
            )
    members = [("m", f"p{number}", f"p{number}", "member", "active", 1, count) for number, count in enumerate(counts)]
    transaction.insert("member", MEMBER, members)
    return waiting


@pytest.mark.parametrize("seed", range(8))
def test_a_page_of_what_waits_is_the_next_of_all_whoever_they_are_for(seed: int) -> None:
    engine = SqliteEngine(MEMORY)
    prepare(engine, lambda: 0, bytes)
    with engine.write() as transaction:
        waiting = sorted(fill(transaction, random.Random(seed)))
        for at in range(POSITIONS + 1):
            after = transaction.rows(SQL["oldest_in_queues"], {"at": at, "limit": LIMIT})
            assert [seq for (seq,) in after] == [seq for seq in waiting if seq > at][:LIMIT]
            before = transaction.rows(SQL["newest_in_queues"], {"at": at, "limit": LIMIT})
            assert [seq for (seq,) in before] == [seq for seq in reversed(waiting) if seq < at][:LIMIT]
    engine.close()
