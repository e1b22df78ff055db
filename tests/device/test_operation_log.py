"""The operation log's promises, one by one, on real files."""

import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import InvalidEntry, OperationLog, SequencesExhausted, SequenceTaken
from holdfast.cli.check import inspect
from holdfast.device.operation_log import BLOB_BYTES_MAX
from holdfast.device.operations import SEQUENCE_MAX
from holdfast.protocol.history import Entry, Kind
from holdfast.protocol.outbox import Status
from holdfast.store import faults, history
from holdfast.store.sqlite import SqliteEngine

A = b"a" * 32
B = b"b" * 32


def _sequences(log: OperationLog, object_id: bytes, sequence: int = 0) -> list[int]:
    return [entry.sequence for entry in log.entries_from(object_id, sequence)]


def test_an_appended_blob_is_there(log: OperationLog) -> None:
    assert log.append(A, 0, b"hello") is True
    (entry,) = log.entries_from(A, 0)
    assert (entry.object_id, entry.sequence, entry.blob, entry.delivered) == (A, 0, b"hello", False)


def test_a_repeated_append_keeps_the_first_blob(log: OperationLog) -> None:
    log.append(A, 5, b"first")
    assert log.append(A, 5, b"second") is False
    assert [entry.blob for entry in log.entries_from(A, 0)] == [b"first"]


def test_a_repeated_append_is_ignored_after_delivery_and_after_pruning_too(log: OperationLog) -> None:
    log.append(A, 5, b"first")
    log.mark_delivered(A, 5)
    assert log.append(A, 5, b"second") is False
    log.prune_blobs(5)
    assert log.append(A, 5, b"third") is False
    assert log.entries_from(A, 0)[0].blob is None
    assert log.outbox() == []


def test_a_sequence_belongs_to_one_object_only(log: OperationLog) -> None:
    log.append(A, 5, b"mine")
    with pytest.raises(SequenceTaken, match="sequence 5 belongs to another object") as raised:
        log.append(B, 5, b"not mine")
    assert raised.value.sequence == 5
    assert log.entries_from(B, 0) == []
    assert log.entries_from(A, 0)[0].blob == b"mine"


def test_entries_come_in_ascending_order_however_they_were_appended(log: OperationLog) -> None:
    for sequence in (3, 1, 2):
        log.append(A, sequence, b"")
    assert _sequences(log, A) == [1, 2, 3]
    assert [entry.sequence for entry in log.outbox()] == [1, 2, 3]


def test_entries_from_starts_at_the_given_sequence(log: OperationLog) -> None:
    for sequence in (1, 4, 9):
        log.append(A, sequence, b"")
    assert _sequences(log, A, 4) == [4, 9]
    assert _sequences(log, A, 5) == [9]
    assert _sequences(log, A, 10) == []


def test_objects_are_independent_and_their_sequences_have_gaps(log: OperationLog) -> None:
    for number, object_id in enumerate([A, B, A, A, B]):
        assert log.append_next(object_id, b"") == number
    assert _sequences(log, A) == [0, 2, 3]
    assert _sequences(log, B) == [1, 4]


def test_an_unknown_object_has_no_entries(log: OperationLog) -> None:
    log.append(A, 0, b"")
    assert log.entries_from(B, 0) == []


def test_a_delivered_entry_leaves_the_outbox_but_not_its_objects_history(log: OperationLog) -> None:
    log.append(A, 0, b"x")
    log.append(A, 1, b"y")
    assert log.mark_delivered(A, 0) is True
    assert [entry.sequence for entry in log.outbox()] == [1]
    assert [(entry.sequence, entry.delivered) for entry in log.entries_from(A, 0)] == [(0, True), (1, False)]


def test_the_outbox_spans_objects_in_global_order(log: OperationLog) -> None:
    log.append(A, 3, b"")
    log.append(B, 1, b"")
    log.append(A, 2, b"")
    assert [(entry.sequence, entry.object_id) for entry in log.outbox()] == [(1, B), (2, A), (3, A)]


def test_the_outbox_can_be_taken_in_pages(log: OperationLog) -> None:
    for sequence in range(7):
        log.append(A, sequence, b"")
    assert [entry.sequence for entry in log.outbox(limit=3)] == [0, 1, 2]
    assert [entry.sequence for entry in log.outbox(after=2, limit=3)] == [3, 4, 5]


@pytest.mark.parametrize(("object_id", "sequence"), [(A, 1), (B, 0), (B, 77)])
def test_marking_an_unknown_entry_changes_nothing(log: OperationLog, object_id: bytes, sequence: int) -> None:
    log.append(A, 0, b"x")
    assert log.mark_delivered(object_id, sequence) is False
    assert len(log.outbox()) == 1


def test_marking_twice_is_the_same_as_once(log: OperationLog) -> None:
    log.append(A, 0, b"x")
    assert log.mark_delivered(A, 0) is True
    first = log.entries_from(A, 0)
    assert log.mark_delivered(A, 0) is False
    assert log.entries_from(A, 0) == first


def test_an_empty_log_has_no_greatest_sequence_and_starts_at_zero(log: OperationLog) -> None:
    assert log.max_sequence() is None
    assert log.next_sequence() == 0
    assert log.append_next(A, b"") == 0


def test_the_greatest_sequence_counts_delivered_entries_too(log: OperationLog) -> None:
    log.append(A, 7, b"")
    log.mark_delivered(A, 7)
    assert log.max_sequence() == 7
    assert log.next_sequence() == 8


def test_the_counter_goes_on_after_a_restart(path: Path) -> None:
    with OperationLog(path) as log:
        assert [log.append_next(A, b"") for _ in range(3)] == [0, 1, 2]
        for sequence in range(3):
            log.mark_delivered(A, sequence)
        assert log.prune_blobs(2) == 3
    with OperationLog(path) as log:
        assert log.append_next(A, b"") == 3


def test_a_log_without_clean_shutdown_is_all_there(path: Path) -> None:
    log = OperationLog(path)
    log.append_next(A, b"one")
    log.append_next(A, b"two")
    log.mark_delivered(A, 0)
    with OperationLog(path) as again:  # the first one was never closed
        assert [entry.blob for entry in again.outbox()] == [b"two"]
        assert again.next_sequence() == 2
    log.close()


def test_only_delivered_blobs_are_pruned_and_only_up_to_the_given_sequence(log: OperationLog) -> None:
    for sequence in range(4):
        log.append(A, sequence, b"x")
    for sequence in (0, 2, 3):
        log.mark_delivered(A, sequence)
    assert log.prune_blobs(2) == 2
    assert [entry.blob for entry in log.entries_from(A, 0)] == [None, b"x", None, b"x"]
    assert log.prune_blobs(2) == 0


def test_a_log_keeps_its_epoch(path: Path) -> None:
    with OperationLog(path) as log:
        epoch = log.epoch
    with OperationLog(path) as log:
        assert log.epoch == epoch
    assert len(epoch) == 16


def test_a_new_log_in_the_old_ones_place_has_a_new_epoch(path: Path) -> None:
    with OperationLog(path) as log:
        log.append_next(A, b"")
        epoch = log.epoch
    path.unlink()
    with OperationLog(path) as log:
        assert log.epoch != epoch
        assert log.max_sequence() is None


def test_a_restored_log_has_a_new_epoch_and_log_id_and_its_sequences_go_on(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with OperationLog(path) as log:
        log.append_next(A, b"before")
        log.backup(copy)
        log.append_next(A, b"after")
        epoch = log.epoch
    path.unlink()
    copy.rename(path)
    with OperationLog(path) as log:
        restored = log.epoch
        assert restored != epoch
        assert [entry.blob for entry in log.outbox()] == [b"before"]
        assert log.append_next(A, b"other") == 1
    with OperationLog(path) as log:
        assert log.epoch == restored, "a new epoch once, not at every start"
    assert inspect(path) == ("device", [])
    entries = _history(path)
    assert [entry.kind for entry in entries] == [Kind.ENQUEUED, Kind.RESTORED, Kind.ENQUEUED]
    assert [entry.epoch for entry in entries] == [epoch, restored, restored]


def test_a_backup_never_writes_over_a_file(log: OperationLog, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("precious")
    with pytest.raises(faults.FileThere, match="exists already"):
        log.backup(tmp_path / "there")
    assert (tmp_path / "there").read_text() == "precious"


def test_a_backup_can_be_made_while_others_write(path: Path, tmp_path: Path) -> None:
    with OperationLog(path) as log:
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                log.append_next(A, b"x" * 100)

        writer = threading.Thread(target=write)
        writer.start()
        for number in range(3):
            log.backup(tmp_path / f"copy{number}")
        stop.set()
        writer.join()
    for number in range(3):
        assert inspect(tmp_path / f"copy{number}") == ("device", [])


def _history(path: Path) -> list[Entry]:
    engine = SqliteEngine(path, read_only=True)
    entries = list(history.walk(engine))
    engine.close()
    return entries


def test_every_change_of_state_is_in_the_history_once(path: Path) -> None:
    with OperationLog(path) as log:
        log.append(A, 4, b"12345")
        log.append(A, 4, b"again")
        log.mark_delivered(A, 4)
        log.mark_delivered(A, 4)
        log.mark_delivered(A, 9)
        log.append_next(B, b"")
        epoch = log.epoch
    told = [(entry.kind, entry.sequence, entry.size, entry.epoch) for entry in _history(path)]
    assert told == [
        (Kind.ENQUEUED, 4, 5, epoch),
        (Kind.RELAYED, 4, None, epoch),
        (Kind.ENQUEUED, 5, 0, epoch),
    ]
    assert all(b"12345" not in entry.detail for entry in _history(path)), "a history never holds a blob"


def test_opening_a_log_appends_nothing_to_its_history(path: Path) -> None:
    OperationLog(path).close()
    OperationLog(path).close()
    assert _history(path) == []


INVALID: dict[str, Callable[[OperationLog], object]] = {
    "object_id must be 32 bytes, not 31": lambda log: log.append(b"a" * 31, 0, b""),
    "object_id must be 32 bytes, not 33": lambda log: log.append_next(b"a" * 33, b""),
    "object_id must be 32 bytes, not str": lambda log: log.append("a" * 32, 0, b""),  # type: ignore[arg-type]
    "object_id must be 32 bytes, not NoneType": lambda log: log.entries_from(None, 0),  # type: ignore[arg-type]
    "object_id must be 32 bytes, not 0": lambda log: log.mark_delivered(b"", 0),
    "sequence must be between 0 and 9223372036854775807, not -1": lambda log: log.append(A, -1, b""),
    "sequence must be between 0 and 9223372036854775807, not 9223372036854775808": lambda log: log.append(
        A, 2**63, b""
    ),
    "sequence must be an integer, not float": lambda log: log.append(A, 1.0, b""),  # type: ignore[arg-type]
    "sequence must be an integer, not bool": lambda log: log.append(A, True, b""),
    "sequence must be an integer, not str": lambda log: log.mark_delivered(A, "1"),  # type: ignore[arg-type]
    "sequence must be an integer, not NoneType": lambda log: log.entries_from(A, None),  # type: ignore[arg-type]
    "blob must be bytes, not str": lambda log: log.append(A, 0, "text"),  # type: ignore[arg-type]
    "blob must be bytes, not list": lambda log: log.append_next(A, [1, 2]),  # type: ignore[arg-type]
    "blob has 1048577 bytes, more than the 1048576 allowed": lambda log: log.append(A, 0, bytes(BLOB_BYTES_MAX + 1)),
}


@pytest.mark.parametrize("message", INVALID)
def test_an_argument_that_no_entry_can_have_is_refused_before_anything_is_touched(path: Path, message: str) -> None:
    with OperationLog(path) as log:
        with pytest.raises(InvalidEntry) as raised:
            INVALID[message](log)
        assert str(raised.value) == message
        assert log.max_sequence() is None
    assert _history(path) == []


def test_the_largest_blob_and_the_greatest_sequence_are_allowed(log: OperationLog) -> None:
    log.append(A, SEQUENCE_MAX, bytes(BLOB_BYTES_MAX))
    assert len(log.entries_from(A, SEQUENCE_MAX)[0].blob or b"") == BLOB_BYTES_MAX
    with pytest.raises(SequencesExhausted):
        log.append_next(A, b"")
    assert log.append(A, SEQUENCE_MAX - 1, b"") is True


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_other_kinds_of_bytes_are_copied(log: OperationLog, kind: Callable[[bytes], bytes]) -> None:
    log.append(kind(A), 0, kind(b"body"))
    assert log.entries_from(A, 0)[0].blob == b"body"


def test_threads_never_get_the_same_sequence(path: Path) -> None:
    with OperationLog(path) as log:
        given: list[list[int]] = [[] for _ in range(8)]

        def work(thread: int) -> None:
            for _ in range(40):
                given[thread].append(log.append_next(bytes([thread]) * 32, b""))

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(sequence for taken in given for sequence in taken) == list(range(320))
        assert all(taken == sorted(taken) for taken in given)
        assert [_sequences(log, bytes([thread]) * 32) for thread in range(8)] == given
    assert inspect(path) == ("device", [])


def test_a_closed_log_says_so(path: Path) -> None:
    log = OperationLog(path)
    log.close()
    log.close()
    with pytest.raises(faults.Closed, match="it was closed"):
        log.append_next(A, b"")
    with pytest.raises(faults.Closed, match="it was closed"):
        log.outbox()


def test_the_statuses_of_the_table_are_those_of_the_protocol(log: OperationLog) -> None:
    with log._engine.read() as transaction:
        ((table,),) = transaction.rows("SELECT sql FROM sqlite_schema WHERE name = 'operation_log'")
    allowed = re.search(r"status IN \(([^)]*)\)", table)
    assert allowed is not None
    assert set(re.findall(r"'(\w+)'", allowed[1])) == set(Status)


@pytest.mark.parametrize("limit", [0, -1, "x", 1.0, True, 2**70])
def test_a_limit_that_makes_no_sense_is_refused(log: OperationLog, limit: Any) -> None:
    with pytest.raises(InvalidEntry, match="limit must be"):
        log.outbox(limit=limit)
    with pytest.raises(InvalidEntry, match="limit must be"):
        log.entries_from(A, 0, limit=limit)


@pytest.mark.parametrize("after", [None, "q", -2, 2**63])
def test_a_start_that_makes_no_sense_is_refused(log: OperationLog, after: Any) -> None:
    with pytest.raises(InvalidEntry, match="sequence must be"):
        log.outbox(after=after)


def test_an_objects_history_can_be_limited(log: OperationLog) -> None:
    for _ in range(4):
        log.append_next(A, b"")
    assert [entry.sequence for entry in log.entries_from(A, 1, limit=2)] == [1, 2]


def test_a_log_in_memory_is_refused() -> None:
    with pytest.raises(InvalidEntry, match="lives in a file"):
        OperationLog(":memory:")


@pytest.mark.parametrize("error", [SequenceTaken(5), SequencesExhausted(), faults.DiskFull("there", "why")])
def test_errors_cross_a_process_border_whole(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_backups_to_one_name_at_once_leave_one_whole_backup(path: Path, tmp_path: Path) -> None:
    with OperationLog(path) as log:
        log.append_next(A, b"x" * 1000)
        answers: list[str] = []

        def back_up() -> None:
            try:
                log.backup(tmp_path / "copy")
                answers.append("made")
            except faults.FileThere:
                answers.append("refused")

        threads = [threading.Thread(target=back_up) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answers) == ["made", "refused", "refused", "refused"]
    assert {file.name for file in tmp_path.iterdir()} == {path.name, "copy"}
    assert inspect(tmp_path / "copy") == ("device", [])


def test_a_backup_is_one_file_that_can_be_carried_away(log: OperationLog, tmp_path: Path) -> None:
    log.append_next(A, b"x")
    log.backup(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes()[18:20] == b"\x01\x01", "it needs no journal beside it"


def test_a_relative_path_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with OperationLog("log") as log:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        log.append_next(A, b"x")
        assert len(log.outbox()) == 1
