"""Up to where histories are proved: what a relay is told that it may let go of."""

import msgspec
import pytest

from holdfast.pipeline import proof
from holdfast.pipeline.plan import Loss, Mark

RELAY, DEVICE, LOG, OLD = "relay:aa", "device:m/anna", b"l" * 16, b"o" * 16
MARKS = {origin: Mark(origin, LOG, 100, b"c" * 32) for origin in (RELAY, DEVICE)}


def _finding(table: str, kind: str, seq: int | None, key: str = "-") -> dict[str, object]:
    return {"table": table, "kind": kind, "origin": RELAY, "key": key, "seq": seq, "is_violation": True}


def _mismatch(seq: int, log_id: bytes = LOG) -> dict[str, object]:
    return _finding("chain_break", "chain_mismatch", seq, f"{log_id.hex()}/{seq}")


def _loss(kind: str, seq: int) -> Loss:
    return Loss(RELAY, kind, "-", "-", seq, is_violation=True)


@pytest.mark.parametrize(
    ("findings", "last"),
    [
        ([], 100),
        ([_mismatch(40), _mismatch(70)], 39),
        ([_finding("chain_break", "time_goes_back", 40)], 100),  # the entry is as its relay wrote it
        ([_finding("orphan", "dedupe_missing", 40)], 100),  # and so is the history of a relay that lost a row
        ([_finding("breach", "invariant", None, 'history/{"origin":"relay:aa","first_seq":51,"last_seq":99}')], 50),
        ([_finding("breach", "invariant", None, 'history/{"origin":"relay:aa","found_first_seq":7}')], 6),
        ([_finding("breach", "invariant", None, 'history/{"origin":"device:of/others","first_seq":3}')], 100),
        ([_finding("breach", "invariant", None, 'listed/{"first_seq":3}')], 100),
    ],
)
def test_no_position_is_kept_past_an_entry_that_is_missing_or_altered(
    findings: list[dict[str, object]], last: int
) -> None:
    found = proof.kept(MARKS, (), proof.in_doubt(findings, [], {}, MARKS))
    assert {origin: mark.seq for origin, mark in found.items()} == {RELAY: last, DEVICE: 100}
    assert found[DEVICE] == MARKS[DEVICE]


@pytest.mark.parametrize(
    ("losses", "last"),
    [
        ([_loss("log_truncated", 40)], 40),  # where the log ends
        ([_loss("log_truncated", 0)], 0),
        ([_loss("log_rewritten", 40)], 39),  # and where it may begin to be another
        ([_loss("pruned_unread", 40)], 100),  # what is gone nobody can let go of
    ],
)
def test_no_position_is_kept_past_what_a_log_has_lost(losses: list[Loss], last: int) -> None:
    assert proof.kept(MARKS, (), proof.in_doubt([], losses, {}, MARKS))[RELAY].seq == last


def test_a_log_that_is_whole_again_is_as_good_as_it_was() -> None:
    found = [_finding("breach", "log_truncated", 40), _finding("breach", "log_rewritten", 40)]
    assert proof.in_doubt(found, [], {}, MARKS) == {}


@pytest.mark.parametrize(("seq", "found"), [(60, {RELAY: 59}), (61, {})], ids=["before the fork", "past it"])
def test_what_a_restore_left_behind_is_in_doubt_no_more(seq: int, found: dict[str, int]) -> None:
    left = {(RELAY, OLD): 60}
    row = msgspec.json.encode({"origin": RELAY, "log_id": OLD, "first_seq": seq}).decode()
    assert proof.in_doubt([_mismatch(seq, OLD)], [], left, MARKS) == found
    assert proof.in_doubt([_finding("breach", "invariant", None, f"history/{row}")], [], left, MARKS) == found
    assert proof.in_doubt([_mismatch(seq)], [], left, MARKS) == {RELAY: seq - 1}, (
        "the log that is there now is another one"
    )


@pytest.mark.parametrize(
    ("key", "last"), [("history/7", 0), ("chain_break/7", 0), ("breach/7", 0), ("extent/7", 0), ("usage/7", 100)]
)
def test_nothing_is_kept_once_somebody_changed_what_tells_of_entries(key: str, last: int) -> None:
    found = proof.kept(MARKS, (), proof.in_doubt([_finding("breach", "table_changed", None, key)], [], {}, MARKS))
    assert {mark.seq for mark in found.values()} == {last}


def test_a_history_that_is_still_to_be_compared_is_not_kept_at_all() -> None:
    assert proof.kept(MARKS, (RELAY,), {}) == {DEVICE: MARKS[DEVICE]}
