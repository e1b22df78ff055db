"""Homes of earlier versions: what was in them is in them after every step of the schema."""

from pathlib import Path

from holdfast.cli.check import inspect
from holdfast.device import database, outbox, scheduled
from holdfast.protocol.outbox import Status
from holdfast.store import migrations
from holdfast.store.migrations import Schema
from holdfast.store.sqlite import SqliteEngine
from tests.device.desk import START, Desk

_BEFORE_COUNTS = [step.name for step in database.SCHEMA.migrations].index("outbox")

_OLD_SEND = """
INSERT INTO scheduled_send
    (client_message_id, request_fingerprint, request, destination_kind, destination_ref, object_id, body, priority,
     mentions, accepted_at, not_before)
VALUES ('later', zeroblob(32), x'7b7d', 'dm', 'member-bob', zeroblob(32), x'68', 'next', '[]', 1, :not_before)
"""
_OLD_ROW = """
INSERT INTO operation_log (sequence, object_id, blob, digest, status, enqueued_at, next_attempt_at, id, client_message_id)
VALUES (:sequence, zeroblob(32), x'68', zeroblob(32), :status, 1, 1, :name, :name)
"""


def test_a_home_from_before_operations_were_counted_and_sends_cancelled_has_all_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    engine = SqliteEngine(path)
    before = Schema(program="device", migrations=database.SCHEMA.migrations[:_BEFORE_COUNTS])
    engine.prepare()
    migrations.migrate(engine, before, lambda: START)
    with engine.write() as transaction:
        transaction.run(_OLD_SEND, {"not_before": START + 10})
        for sequence, status in enumerate(("pending", "pending", "dead")):
            transaction.run(_OLD_ROW, {"sequence": sequence, "status": status, "name": f"old-{sequence}"})
    engine.close()
    desk = Desk(path)
    counted = desk.look(outbox.count)
    assert [counted[status] for status in Status] == [2, 0, 0, 1, 0]
    assert [each.client_message_id for each in desk.look(scheduled.waiting)] == ["later"]
    desk.now = START + 10
    assert desk.do(lambda tx: scheduled.release(tx, desk.facts, desk.now, desk.random)) == 1
    assert desk.look(outbox.count)[Status.PENDING] == 3
    desk.engine.close()
    assert "operations_are_counted" not in {finding.check for finding in inspect(path)[1]}


_BEFORE_UNFIRED = [step.name for step in database.SCHEMA.migrations].index("unfired")

_OLD_MESSAGE = """
INSERT INTO inbox
    (arrival, id, client_message_id, broker_message_id, mesh, sender, sender_pubkey, sender_name, epoch, sequence, event_id,
     event, status, body, priority, mentions, sent_at, received_at, was_stored, replayed, log_id, history_id, fired_at)
VALUES (1, 'one', 'one', 'broker-1', 'mesh', 'member-bob', 'key', 'bob', zeroblob(16), 0, zeroblob(32),
        x'7b7d', 'stored', x'68', 'next', '[]', 1, 1, 0, 0, zeroblob(16), 1, :fired_at)
"""


def test_a_home_from_when_messages_had_a_mark_for_their_effects_has_all_of_its_messages(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    engine = SqliteEngine(path)
    engine.prepare()
    before = Schema(program="device", migrations=database.SCHEMA.migrations[:_BEFORE_UNFIRED])
    migrations.migrate(engine, before, lambda: START)
    with engine.write() as transaction:
        transaction.run(_OLD_MESSAGE, {"fired_at": START})
    engine.close()
    desk = Desk(path)
    (message,) = desk.inbox(unapplied=True)
    assert (message.id, message.body, message.applied_at) == ("one", b"h", None)
    desk.engine.close()
