"""Up to where histories are proved: what a relay is told that it may let go of."""

import pytest

from holdfast.pipeline import proof
from holdfast.pipeline.plan import Mark

RELAY, DEVICE, LOG = "relay:aa", "device:m/anna", b"l" * 16
MARKS = {origin: Mark(origin, LOG, 100, b"c" * 32) for origin in (RELAY, DEVICE)}


def _finding(table: str, kind: str, seq: int | None, key: str = "-") -> dict[str, object]:
    return {"table": table, "kind": kind, "origin": RELAY, "key": key, "seq": seq, "is_violation": True}


@pytest.mark.parametrize(
    ("findings", "last"),
    [
        ([], 100),
        ([_finding("chain_break", "chain_mismatch", 40), _finding("chain_break", "chain_mismatch", 70)], 39),
        ([_finding("chain_break", "time_goes_back", 40)], 100),  # the entry is as its relay wrote it
        ([_finding("breach", "log_truncated", 40), _finding("breach", "log_truncated", 42)], 40),  # where the log ended
        ([_finding("breach", "log_rewritten", 40)], 39),  # and where it may begin to be another
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
    found = proof.kept(MARKS, (), proof.in_doubt(findings))
    assert {origin: mark.seq for origin, mark in found.items()} == {RELAY: last, DEVICE: 100}
    assert found[DEVICE] == MARKS[DEVICE]


def test_a_history_that_is_still_to_be_compared_is_not_kept_at_all() -> None:
    assert proof.kept(MARKS, (RELAY,), {}) == {DEVICE: MARKS[DEVICE]}
