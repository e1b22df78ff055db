"""Where logs were left for restored ones, and from where on a history is known."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from holdfast.pipeline.tables.extent import Log, _cut_off, began
from holdfast.protocol.history import Restored

A, B, C, D = (letter * 16 for letter in (b"A", b"B", b"C", b"D"))


@dataclass(frozen=True)
class Fork:
    """An entry that tells of a restore, as it is read."""

    origin: str
    log_id: bytes
    seq: int
    at: datetime
    detail: bytes


def fork(read: bytes, old: bytes, new: bytes, seq: int) -> Fork:
    """The entry of a restore, in the log that was read: a restored log has those of all logs before it."""
    told = Restored(old, new, seq, b"c" * 32)
    return Fork("relay:x", read, seq + 1, datetime(2026, 1, 1, tzinfo=UTC), told.encode())


FIRST, SECOND, THIRD = (A, B, 10), (B, C, 20), (C, D, 30)

CASES = {
    "once": (A, [[fork(B, *FIRST)]], {A: 10, B: None}),
    "twice": (A, [[fork(B, *FIRST)], [fork(C, *SECOND)]], {A: 10, B: 20, C: None}),
    "twice before anybody read": (A, [[fork(C, *FIRST), fork(C, *SECOND)]], {A: 10, B: 20, C: None}),
    "twice, read in two batches": (A, [[fork(C, *FIRST)], [fork(C, *SECOND)]], {A: 10, B: 20, C: None}),
    "again before the first forks were read": (
        C,
        [[fork(D, *FIRST)], [fork(D, *SECOND), fork(D, *THIRD)]],
        {A: 10, B: 20, C: 30, D: None},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_last_log_is_whole_and_every_other_ends_where_it_was_left(name: str) -> None:
    known, batches, ends = CASES[name]
    logs = {("relay:x", known): Log("relay:x", known, 1, 5)}
    for forks in batches:
        read = "relay:x", forks[0].log_id
        logs.setdefault(read, Log(*read, 1, 40))
        _cut_off(logs, forks)  # type: ignore[arg-type]  # rows of Spark's have these names
    assert {log_id: log.valid_until for (_, log_id), log in logs.items()} == ends


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
