"""Documents: what is current, and what is in conflict, is found whatever the order and the batches; and so is what was tampered with."""

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.tables import _snapshot
from holdfast.protocol.history import Draft, Kind
from tests.pipeline.tables.memory_lake import MemoryLake, Part, Rows
from tests.pipeline.tables.test_twins import seen
from tests.pipeline.twins import documents, random_documents, twins
from tests.pipeline.twins.random_documents import Feed
from tests.pipeline.twins.random_world import Log

ORIGIN = "relay:" + "c" * 64
HONEST = "relay:" + "d" * 64
INVENTED_SEQ = 1  # where the history has something else

pytestmark = pytest.mark.timeout(600)


def _written(seed: int, steps: int) -> tuple[Log, Feed]:
    random, log, feed = Random(seed), Log(b"L" * 16), Feed()
    log.say(Draft(kind=Kind.MODERATED, message_id="m", destination_kind="moderation"))
    for _ in range(steps):
        what = random.choices(
            (random_documents.publish, random_documents.let_go, random_documents.tell_anew), (18, 1, 2)
        )
        what[0](random, feed, log.say)
    return log, feed


def _parts(log: Log, cuts: list[int]) -> list[Part]:
    bounds = [0, *cuts, len(log.entries)]
    chains = [log.entries[after - 1].chain if after else None for after in bounds]
    return [
        Part(ORIGIN, log.log_id, after, until, log.entries[after:until], chain)
        for after, until, chain in zip(bounds, bounds[1:], chains, strict=False)
    ]


def test_what_is_current_does_not_depend_on_how_the_history_is_cut(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_snapshot, "CHUNK", 7)  # so that a document of a few dozen snapshots lies in many chunks
    log, _ = _written(2, 220)
    ids = [entry.event_id for entry in log.entries if entry.kind is Kind.SNAPSHOT]
    assert len(set(ids)) < len(ids), "nothing is told anew"
    cuts = [60, 61, 150]
    lake = MemoryLake(spark, ("current_snapshot", "conflict"))
    for part in _parts(log, cuts):
        lake.run([part])
    story = twins.Story(_parts(log, cuts))
    for name, twin in (("current_snapshot", documents.current_snapshot), ("conflict", documents.conflict)):
        expected = twin(story)
        assert expected, "the seed does not try what it is there for"
        assert seen(lake.rows[name], sorted(expected[0])) == seen(expected, sorted(expected[0])), name
    assert lake.breaches == []


def _superseded_is_current(rows: Rows) -> tuple[str, int]:
    row = next(row for row in rows if row["superseded_seq"] is not None)
    row["superseded_seq"] = None
    return "snapshot_differs", row["seq"]


def _current_is_superseded(rows: Rows) -> tuple[str, int]:
    row = next(row for row in rows if row["superseded_seq"] is None)
    row["superseded_seq"] = row["seq"]
    return "snapshot_differs", row["seq"]


def _put_is_deletion(rows: Rows) -> tuple[str, int]:
    row = next(row for row in rows if row["o"] == "put")
    row["o"] = "del"
    return "snapshot_differs", row["seq"]


def _clock_goes_on(rows: Rows) -> tuple[str, int]:
    row = rows[0]
    row["clock"] = row["clock"].replace(",", ",1", 1)
    return "snapshot_differs", row["seq"]


def _row_is_gone(rows: Rows) -> tuple[str, int]:
    row = next(row for row in rows if row["superseded_seq"] is None)
    rows.remove(row)
    return "snapshot_missing", row["seq"]


def _row_is_invented(rows: Rows) -> tuple[str, int]:
    rows.append({**rows[0], "seq": INVENTED_SEQ, "d": "invented"})
    return "snapshot_unknown", INVENTED_SEQ


DAMAGES = (
    _superseded_is_current,
    _current_is_superseded,
    _put_is_deletion,
    _clock_goes_on,
    _row_is_gone,
    _row_is_invented,
)


@pytest.mark.parametrize("full", [True, False])
def test_snapshots_that_are_not_what_the_history_says_are_found_and_no_others(spark: SparkSession, full: bool) -> None:
    log, feed = _written(3, 120)
    rows = list(feed.snapshot.values())
    expected = {_damaged(damage, rows) for damage in DAMAGES}
    honest, its_feed = _written(4, 120)
    beside = [replace(part, origin=HONEST) for part in _parts(honest, [])]
    state = [*_exported(ORIGIN, log, rows), *_exported(HONEST, honest, list(its_feed.snapshot.values()))]
    lake = MemoryLake(spark, ("orphan",))
    lake.run([*_parts(log, []), *beside], full=full, state={"snapshot": state})
    assert {(row["kind"], row["seq"]) for row in lake.rows["orphan"]} == expected
    assert {row["origin"] for row in lake.rows["orphan"]} == {ORIGIN}
    assert len(lake.rows["orphan"]) == len(expected) == len(DAMAGES)


def _exported(origin: str, log: Log, rows: Rows) -> Rows:
    page = {"origin": origin, "log_id": log.log_id}
    return [{**page, **row} for row in rows]


def _damaged(damage: Callable[[Rows], tuple[str, int]], rows: Rows) -> tuple[str, int]:
    """Damage one row and put it last, so that every damage hits another."""
    kind, seq = damage(rows)
    rows.sort(key=lambda row: row["seq"] == seq)
    return kind, seq


def _snapshot_of(d: str) -> Draft:
    said = {"author": "a" * 64, "c": None, "created_at": 1, "d": d, "kind": 40000, "o": "put", "vc": [["desk", 1]]}
    detail = json.dumps(said, separators=(",", ":")).encode()
    return Draft(kind=Kind.SNAPSHOT, event_id=d.encode() * 32, size=9, destination_ref="a" * 64, detail=detail)


def test_a_document_that_its_relay_forgot_is_gone_though_another_has_its_place(spark: SparkSession) -> None:
    old = Log(b"A" * 16)
    old.say(_snapshot_of("a"))
    new = old.forked(b"B" * 16)
    for d in ("b", "c"):
        old.say(_snapshot_of(d), 1)
    new.say(_snapshot_of("d"), 5)  # the third entry, as `c` was
    lake = MemoryLake(spark, ("current_snapshot",))
    lake.run([Part(ORIGIN, old.log_id, 0, 3, old.entries)])
    assert sorted(row["d"] for row in lake.rows["current_snapshot"]) == ["a", "b", "c"]
    lake.run([Part(ORIGIN, new.log_id, 1, 3, new.entries[1:], new.entries[0].chain)])
    assert sorted(row["d"] for row in lake.rows["current_snapshot"]) == ["a", "d"]
