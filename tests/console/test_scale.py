"""A million messages: how long each list of a relay's console takes. Run by `make scale`; what is measured is printed."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.console import relay_messages, relay_overview, relay_places
from holdfast.console.relay_messages import Query
from holdfast.protocol.schedule import DAY
from holdfast.relay.database import open_relay
from holdfast.store.engine import Transaction
from holdfast.store.world import wall_clock

MESSAGES = 1_000_000
MEMBERS = 2_000
WAITING = 100_000

pytestmark = pytest.mark.skipif("HOLDFAST_SCALE" not in os.environ, reason="a million rows; run `make scale`")


def fill(transaction: Transaction, now: int) -> None:
    """Rows as a busy week leaves them; what the pages do not look at is made up."""
    start = now - 7 * DAY
    step = 7 * DAY // MESSAGES
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MESSAGES})"
    members = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {MEMBERS - 1})"
    transaction.run("INSERT INTO mesh (mesh, name, created_at) VALUES ('m', 'busy', 1), ('quiet', 'quiet', 1)")
    transaction.run(
        f"INSERT INTO member (mesh, member, name, role, status, joined_at) {members} SELECT 'm', 'p' || i, 'p' || i, 'member', 'active', 1 FROM n"
    )
    transaction.run(
        f"INSERT INTO message (message_id, mesh, sender, client_message_id, event_id, seq, kind, destination_kind, destination_ref, event, size, accepted_at) "
        f"{numbers} SELECT 'id' || i, 'm', 'p' || (i % {MEMBERS}), 'c' || i, CAST('e' || i AS BLOB), i, 4201, 'dm', 'p' || (i * 7 % {MEMBERS}), zeroblob(900), 900, {start} + i * {step} FROM n"
    )
    transaction.run(
        "INSERT INTO dedupe (mesh, sender, client_message_id, event_id, message_id, seq, destination_kind, destination_ref, first_seen_at, skipped) "
        "SELECT mesh, sender, client_message_id, event_id, message_id, seq, destination_kind, destination_ref, accepted_at, '[]' FROM message"
    )
    transaction.run(
        f"INSERT INTO delivery (mesh, member, seq, message_id, state, expires_at, closed_at, was_stored) "
        f"SELECT mesh, destination_ref, seq, message_id, CASE WHEN seq > {MESSAGES - WAITING} THEN 'open' ELSE 'delivered' END, accepted_at, CASE WHEN seq > {MESSAGES - WAITING} THEN NULL ELSE accepted_at + 1 END, 1 FROM message"
    )
    transaction.run(f"UPDATE member SET queue_count = {WAITING // MEMBERS}")
    transaction.run(
        "INSERT INTO history (seq, at, kind, mesh, message_id, sender, recipients, mentions, detail, chain) SELECT seq, accepted_at, 'accepted', mesh, message_id, sender, '[]', '[]', x'', zeroblob(32) FROM message"
    )
    transaction.run(f"UPDATE history_head SET seq = {MESSAGES}, at = {now}")


def test_every_list_of_a_million_messages(tmp_path: Path) -> None:
    now = wall_clock()
    engine = open_relay(tmp_path / "relay.db")
    with engine.write() as transaction:
        fill(transaction, now)
    asked: dict[str, Callable[[Transaction], object]] = {
        "overview": lambda tx: relay_overview.overview(tx, now),
        "rates": lambda tx: relay_overview.Rates().read(tx, now),
        "newest": lambda tx: relay_messages.page(tx, Query()),
        "the middle": lambda tx: relay_messages.page(tx, Query(at=MESSAGES // 2)),
        "of a sender": lambda tx: relay_messages.page(tx, Query(mesh="m", sender="p77", order="oldest")),
        "of a recipient": lambda tx: relay_messages.page(tx, Query(mesh="m", recipient="p77", at=MESSAGES // 2)),
        "of a quiet mesh": lambda tx: relay_messages.page(tx, Query(mesh="quiet")),
        "of a topic": lambda tx: relay_messages.page(tx, Query(mesh="m", topic="news")),
        "waiting": lambda tx: relay_messages.page(tx, Query(state="waiting", order="oldest")),
        "by a caller's id": lambda tx: relay_messages.find(tx, "c500000"),
        "one message": lambda tx: relay_messages.message(tx, "id500000"),
        "queues": lambda tx: relay_places.queues(tx, relay_places.QueueQuery()),
        "history": lambda tx: relay_places.entries(tx, relay_places.SeqQuery(at=MESSAGES // 2)),
        "feed": lambda tx: relay_places.feed(tx, relay_places.DocumentQuery()),
    }
    with engine.read() as transaction:
        for name, look in asked.items():
            began = time.perf_counter()
            assert look(transaction) is not None
            print(f"{name:>18}: {(time.perf_counter() - began) * 1000:8.1f} ms")
    engine.close()
