"""Each rule about messages finds what breaks it, and no rule is without a test."""

from pathlib import Path

import pytest

from holdfast.cli.check import inspect
from holdfast.device import arrivals, inbox, outbox, receipts, requeue, scheduled
from holdfast.device.database import SCHEMA
from holdfast.device.forks import Fork
from holdfast.protocol.outbox import Signal
from holdfast.protocol.payload import Payload
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import Refusal
from holdfast.store.sqlite import SqliteEngine
from holdfast.wire.client import Fate
from tests.device import test_checks, test_feed_checks
from tests.device.desk import LOG, NEW_LOG, START, Desk

TAMPERINGS = {
    "every_relayed_entry_is_delivered": (
        "UPDATE operation_log SET status = 'dead', delivered_at = NULL, broker_message_id = NULL"
        " WHERE client_message_id = 'done'"
    ),
    "every_delivered_entry_was_relayed_once": (
        "UPDATE operation_log SET status = 'done', delivered_at = 1 WHERE client_message_id = 'lost'"
    ),
    "what_is_in_flight_has_its_event": "UPDATE operation_log SET event = NULL WHERE client_message_id = 'inflight'",
    "what_was_superseded_has_its_successor": (
        "UPDATE operation_log SET superseded_by = 'nobody' WHERE superseded_by IS NOT NULL"
    ),
    "what_was_signed_has_its_name": "UPDATE operation_log SET event_id = NULL WHERE client_message_id = 'done'",
    "what_the_relay_lost_is_offered": "UPDATE operation_log SET log_id = zeroblob(16) WHERE client_message_id = 'lost'",
    "every_superseded_entry_has_one_successor_of_its_own": (
        "UPDATE operation_log SET superseded_by = id WHERE superseded_by IS NOT NULL"
    ),
    "scheduled_sends_are_released_once": "UPDATE scheduled_send SET sequence = 99 WHERE sequence IS NOT NULL",
    "operations_are_counted": "UPDATE operation_count SET rows = rows + 1 WHERE status = 'dead'",
    "every_status_is_counted": "DELETE FROM operation_count WHERE status = 'aborted'",
    "what_was_cancelled_is_in_the_history": (
        "UPDATE scheduled_send SET cancelled_at = 1, body = NULL WHERE client_message_id = 'waits'"
    ),
    "nothing_is_released_early": "UPDATE scheduled_send SET released_at = 1 WHERE released_at IS NOT NULL",
    "every_message_was_stored_once": (
        "UPDATE history SET kind = 'delivered' WHERE kind = 'stored' AND reason = 'unreadable'"
    ),
    "every_duplicate_was_told_once": "UPDATE history SET reason = 'stored' WHERE reason = 'duplicate'",
    "every_stored_entry_is_in_the_inbox": "DELETE FROM inbox WHERE client_message_id = 'theirs'",
    "every_receipt_owed_is_in_the_log": "UPDATE operation_log SET destination_ref = 'x' WHERE destination_kind = 'receipt'",
    "arrivals_have_no_holes": "DELETE FROM inbox WHERE arrival = 1",
    "every_sender_has_its_epochs": "DELETE FROM sender_epoch",
    "what_is_readable_has_its_content": "UPDATE inbox SET body = NULL WHERE client_message_id = 'theirs'",
    "what_was_applied_is_in_the_history": "UPDATE inbox SET applied_at = 1",
    "every_mention_is_of_a_message": "UPDATE inbox_mention SET arrival = 99",
    "every_receipt_is_about_a_send": "DELETE FROM receipt",
    "every_receipt_was_told_once": "UPDATE send_receipt SET status = 'duplicate'",
    "every_fate_is_about_a_send": "UPDATE fate SET sequence = 99",
    "contents": "UPDATE inbox SET body = CAST('mine' AS BLOB) WHERE client_message_id = 'theirs'",
    "evidence": "UPDATE inbox SET event = CAST(replace(CAST(event AS TEXT), '4201', '4202') AS BLOB)",
}

MORE = {
    "what_was_applied_is_in_the_history": [
        "UPDATE inbox SET parked_at = NULL",
        "UPDATE inbox SET opened_at = 7 WHERE client_message_id = 'theirs'",
    ],
    "every_receipt_owed_is_in_the_log": [
        "UPDATE inbox SET receipt_sequence = NULL WHERE arrival = 1",
        "UPDATE inbox_duplicate SET receipt_sequence = 0",
    ],
    "scheduled_sends_are_released_once": [
        "UPDATE operation_log SET client_message_id = 'waits' WHERE client_message_id = 'done'",
    ],
    "evidence": [
        "UPDATE receipt SET event = x'7b7d'",
        "UPDATE inbox_duplicate SET event = (SELECT event FROM inbox LIMIT 1)",
    ],
    "what_was_cancelled_is_in_the_history": [
        "UPDATE scheduled_send SET cancelled_at = NULL, body = x'' WHERE client_message_id = 'cancelled'"
    ],
    "every_relayed_entry_is_delivered": ["DELETE FROM operation_log WHERE client_message_id = 'late'"],
}
CASES = [
    *TAMPERINGS.items(),
    *((name, statement) for name, statements in MORE.items() for statement in statements),
]


def _live(desk: Desk) -> None:
    """Something of everything that can happen to messages."""
    done, lost, dead, late = (desk.sent(client_message_id=name) for name in ("done", "lost", "dead", "late"))
    done = desk.relay(done, history_id=1)
    desk.relay(lost, history_id=2)
    desk.do(lambda tx: outbox.roll_back(tx, desk.facts, desk.now, [Fork(LOG, 1)]))
    desk.refuse(dead, Refusal.MAY_NOT_POST)
    desk.settle(desk.claim(late), FaultKind.TIMEOUT)
    desk.do(lambda tx: requeue.requeue(tx, desk.facts, desk.now, desk.random, late.id, force=True))
    found = outbox.Committed(broker_message_id="late", history_id=9, log_id=NEW_LOG)
    retired = desk.item(late.id)
    desk.do(lambda tx: outbox.keep_yes(tx, desk.facts, desk.now, retired, Signal.DUPLICATE, found))
    desk.claim(desk.sent(client_message_id="inflight"))
    desk.take(desk.receipt(desk.bob, (done, "stored")), desk.bob)
    event_id = (done.event_id or b"").hex()
    fate = Fate(
        seq=3, at=desk.now, kind="delivered", client_message_id="done", recipient=desk.bob.member, event_id=event_id
    )
    desk.do(lambda tx: receipts.take_fates(tx, desk.now, LOG, 3, [fate]))
    desk.send(client_message_id="later", not_before=START + 5)
    desk.send(client_message_id="waits", not_before=START + 500)
    desk.send(client_message_id="cancelled", not_before=START + 500)
    desk.do(lambda tx: scheduled.cancel(tx, desk.facts, desk.now, "cancelled"))
    desk.now += 10
    desk.do(lambda tx: scheduled.release(tx, desk.facts, desk.now, desk.random))
    theirs = desk.bob.message(desk.me, client_message_id="theirs", mentions=(desk.me.member,))
    other = desk.bob.message(desk.me, b"other", client_message_id="theirs")
    stored = desk.store(desk.arrival(theirs), desk.arrival(other), desk.arrival(desk.bob.post("news"), body=None))
    sealed = stored[2].id or ""
    desk.do(lambda tx: arrivals.reopen(tx, desk.facts, desk.now, [(sealed, Payload(body=b"x"))]))
    for _ in range(inbox.HANDLER_ATTEMPTS_MAX):
        desk.do(lambda tx: inbox.fail(tx, desk.facts, desk.now, sealed, "it raised"))
    desk.do(lambda tx: inbox.acknowledge(tx, desk.facts, desk.now, [sealed]))


@pytest.mark.parametrize(("name", "tampering"), CASES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(CASES)])
def test_each_rule_about_messages_finds_what_breaks_it(tmp_path: Path, name: str, tampering: str) -> None:
    path = tmp_path / "device.db"
    desk = Desk(path)
    _live(desk)
    desk.close()
    engine = SqliteEngine(path)
    engine._execute(engine._writer, tampering)
    engine.close()
    assert name in {finding.check for finding in inspect(path)[1]}


def test_no_rule_of_a_device_is_without_a_test() -> None:
    rules = {statement.name for statements in SCHEMA.checks for statement in statements.values()}
    of_the_store = {"head_is_the_last_entry", "history_time_never_goes_back"}  # tested where every program's history is
    of_documents = {name for found in test_feed_checks.PLANTED.values() for name in found}
    assert rules - TAMPERINGS.keys() - test_checks.TAMPERINGS.keys() - of_documents == of_the_store
