"""Each rule of the device's database finds what breaks it."""

from pathlib import Path

import pytest

from holdfast import OperationLog
from holdfast.cli.check import inspect
from holdfast.store.sqlite import SqliteEngine

A = b"a" * 32

TAMPERINGS = {
    "device_has_one_epoch": "DELETE FROM device",
    "file": "PRAGMA ignore_check_constraints=ON; UPDATE operation_log SET blob = NULL",
    "every_enqueued_entry_is_in_the_log": "DELETE FROM operation_log WHERE sequence = 1",
    "every_log_entry_was_enqueued_once": (
        "INSERT INTO operation_log (sequence, object_id, blob, digest, status, enqueued_at, next_attempt_at, id,"
        " client_message_id) VALUES (7, zeroblob(32), x'', zeroblob(32), 'pending', 0, 0, 'x', 'x')"
    ),
    "every_relayed_entry_is_delivered": (
        "UPDATE operation_log SET status = 'pending', delivered_at = NULL WHERE sequence = 0"
    ),
    "every_delivered_entry_was_relayed_once": (
        "UPDATE operation_log SET status = 'done', delivered_at = 1 WHERE sequence = 1"
    ),
    "the_epoch_is_the_one_that_was_minted_last": "UPDATE device SET epoch = zeroblob(16)",
    "what_was_given_up_is_in_the_history": "UPDATE operation_log SET status = 'dead' WHERE sequence = 1",
    "blobs_have_the_size_that_was_enqueued": "UPDATE operation_log SET blob = x'00' WHERE sequence = 1",
    "entries_were_enqueued_when_the_history_says": "UPDATE operation_log SET enqueued_at = enqueued_at + 9000000",
    "entries": "UPDATE operation_log SET object_id = zeroblob(32) WHERE sequence = 1",
    "every_schema_step_was_taken_once": "DELETE FROM holdfast_migration WHERE version = 1",
    "history_has_no_holes": "DELETE FROM history WHERE seq = 2",
    "every_hook_event_ends_once_and_after_it_came": (
        "INSERT INTO history (seq, at, kind, recipients, mentions, event_id, detail, chain)"
        " VALUES (99, 9000000000000000, 'hook_done', '[]', '[]', x'01', x'', zeroblob(32))"
    ),
    "chain": "UPDATE history SET recipients = 7",
    "verify": "DELETE FROM history_head",
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_each_rule_finds_what_breaks_it(path: Path, name: str) -> None:
    with OperationLog(path) as log:
        for number in range(3):
            log.append_next(A, f"entry {number}".encode())
        log.mark_delivered(A, 0)
    assert inspect(path) == ("device", [])
    engine = SqliteEngine(path)
    engine._execute(engine._writer, TAMPERINGS[name])
    engine.close()
    found = {finding.check for finding in inspect(path)[1]}
    assert name in found


def test_a_damaged_page_is_reported_and_not_a_traceback(path: Path) -> None:
    with OperationLog(path) as log:
        for number in range(200):
            log.append_next(A, f"entry {number}".encode() * 20)
    content = bytearray(path.read_bytes())
    content[5 * 4096 : 6 * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    assert {finding.check for finding in inspect(path)[1]} == {"file"}
