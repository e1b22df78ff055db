"""Logs and where they were left, if all of a history's restores are looked at in one go, as a backfill does."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from holdfast.pipeline.tables.extent import Log, _cut_off, began
from holdfast.protocol.history import Restored

A, B, C = (letter * 16 for letter in (b"A", b"B", b"C"))


@dataclass(frozen=True)
class Fork:
    """An entry that tells of a restore, as it is read."""

    origin: str
    log_id: bytes
    seq: int
    at: datetime
    detail: bytes


def fork(minute: int, old: bytes, new: bytes, seq: int) -> Fork:
    told = Restored(old, new, seq, b"c" * 32)
    return Fork("relay:x", new, seq + 1, datetime(2026, 1, 1, 0, minute, tzinfo=UTC), told.encode())


CASES = {
    "one behind the other": ([fork(1, A, B, 10), fork(2, B, C, 20)], {A: 10, B: 20, C: None}),
    "back to before the first": ([fork(1, A, B, 10), fork(2, A, C, 5)], {A: 5, B: 5, C: None}),
    "once": ([fork(1, A, B, 10)], {A: 10, B: None, C: None}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_last_log_is_whole_and_every_other_ends_where_it_was_left(name: str) -> None:
    forks, ends = CASES[name]
    logs = {("relay:x", log_id): Log("relay:x", log_id, 1, 30) for log_id in ends if log_id != C or len(forks) > 1}
    _cut_off(logs, forks)  # type: ignore[arg-type]  # rows of Spark's have these names
    found = {log_id: log.valid_until for (_, log_id), log in logs.items()}
    assert found == {log_id: ends[log_id] for log_id in found}


def log(log_id: bytes, first_seq: int | None, last_seq: int | None, valid_until: int | None = None) -> Log:
    return Log("relay:x", log_id, first_seq, last_seq, valid_until=valid_until)


BEGINNINGS = {
    "from the first entry": ([log(A, 1, 30)], 1),
    "late": ([log(A, 11, 30)], 11),
    "late, then restored": ([log(A, 11, 30, 20), log(B, 21, 40)], 11),
    "restored by a log that was never read": ([log(A, 1, 30, 20), log(B, None, None, 35), log(C, 21, 40)], 1),
    "restored twice": ([log(A, 1, 30, 20), log(B, 21, 40, 25), log(C, 26, 50)], 1),
    "before its restore was read": ([log(A, 1, 20), log(B, 21, 40)], 1),
    "restored, then pruned unread": ([log(A, 1, 30, 20), log(B, 31, 40)], 31),
    "pruned unread, then restored to before that": ([log(A, 31, 40, 20), log(B, 21, 50)], 21),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_history_is_known_from_where_its_logs_lead_up_to_the_last(name: str) -> None:
    logs, seq = BEGINNINGS[name]
    assert began(logs) == {"relay:x": seq}
    assert began(list(reversed(logs))) == {"relay:x": seq}
