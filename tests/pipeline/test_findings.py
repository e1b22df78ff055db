"""Findings that are too many for one program to have in hand."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.pipeline import balance, certificate, proof, records, report
from holdfast.pipeline.certificate import Facts
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.records import BREACH, CERTIFICATE, RUN
from holdfast.pipeline.shelf import Shelf

RELAY = "relay:aa"
MANY = 3_000


def _finding(number: int, **more: Any) -> dict[str, Any]:
    said = {"origin": RELAY, "kind": "lost", "key": f"{number:06}", "detail": "-", "at": None}
    return {**said, "seq": number, "is_violation": number % 3 == 0, **more}


def _commit(lake: Lake, number: int, rows: list[dict[str, Any]]) -> dict[str, int]:
    lake.commit(BREACH, number, lake.stage_rows(BREACH, records.arrow_rows(BREACH, rows)))
    handle = lake.delta(BREACH.name)
    assert handle is not None
    return {BREACH.name: handle.version()}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake(tmp_path / "lake")
    found.create()
    return found


def test_findings_are_counted_and_the_first_of_them_are_told(lake: Lake) -> None:
    versions = _commit(lake, 1, [_finding(number) for number in range(MANY)])
    found = Shelf(lake, {}).findings(versions)
    assert (found.count().violations, found.count().all, dict(found.count().kinds)) == (1_000, MANY, {"lost": MANY})
    assert [row["key"] for row in found.first(2)] == ["000000", "000003"], "violations come first"
    assert [row["key"] for row in found.first(1_002)[999:]] == ["002997", "000001", "000002"]
    assert {row["table"] for row in found.first(MANY)} == {"breach"}


def test_violations_are_new_that_no_file_had(lake: Lake) -> None:
    shelf = Shelf(lake, {})
    nothing = shelf.findings({})
    first = shelf.findings(_commit(lake, 1, [_finding(number) for number in range(6)]))
    same = shelf.findings(_commit(lake, 2, []))
    more = shelf.findings(_commit(lake, 3, [_finding(3), _finding(4), _finding(9)]))
    assert first.new_violations(nothing) == 2
    assert same.new_violations(first) == 0
    assert more.new_violations(same) == 1, "what was known is not new in another file either"


def test_what_is_in_doubt_is_told_by_few_of_many(lake: Lake) -> None:
    broken = 'history/{"origin":"relay:aa","first_seq":51,"last_seq":99}'
    rows = [_finding(number) for number in range(MANY)]
    rows += [_finding(0, kind="invariant", key=broken, seq=None), _finding(0, kind="invariant", key="x/{}", seq=None)]
    few = Shelf(lake, {}).findings(_commit(lake, 1, rows)).first_of_each()
    assert {(row["kind"], row["seq"]) for row in few} == {("lost", 0), ("invariant", None)}
    assert proof.in_doubt(few, [], {}, [RELAY]) == {RELAY: 50}


def test_of_every_log_of_a_history_the_first_doubtful_entry_is_told(lake: Lake) -> None:
    old, new = b"o" * 16, b"n" * 16
    places = [(old, 70), (old, 71), (new, 81), (new, 90)]
    rows = [_finding(seq, kind="chain_mismatch", key=f"{log.hex()}/{seq}") for log, seq in places]
    few = Shelf(lake, {}).findings(_commit(lake, 1, rows)).first_of_each()
    assert sorted(row["key"] for row in few) == sorted([f"{old.hex()}/70", f"{new.hex()}/81"])


def test_certificate_and_report_tell_the_first_and_count_the_others(lake: Lake) -> None:
    versions = _commit(lake, 1, [_finding(number) for number in range(MANY)])
    shelf = Shelf(lake, {})
    facts = Facts(1, 1, [], [], versions, {}, {}, shelf.findings(versions), balance.zero(), [])
    made = certificate.write(facts, None, certificate.lake_key(lake.private))
    said = made.said["findings"]
    assert (said["violations"], said["kinds"], len(said["first"])) == (1_000, {"lost": MANY}, 100)
    at, listed = records.as_time(1), [{"table": name, "version": version} for name, version in versions.items()]
    for table, row in (
        (CERTIFICATE, {"number": 1, "at": at, **vars(made)}),
        (RUN, {"number": 1, "at": at, "entries": 0, "ranges": [], "heads": [], "versions": listed}),
    ):
        lake.commit(table, 1, lake.stage_rows(table, records.arrow_rows(table, [row])))
    told = report.gather(shelf)
    assert (told["violations"], len(told["findings"]), told["findings_more"], told["findings_removed"]) == (
        *(1_000, 1_000),
        *(2_000, 0),
    )
    assert "… and 2,000 more." in report.page(told, str)
