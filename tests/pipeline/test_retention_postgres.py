"""The same on PostgreSQL: a relay there prunes what a lake has, the lake goes on across the cut, and answers for what is gone."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from holdfast.cli.generate import make
from holdfast.pipeline import archive, checkpoint, pages
from holdfast.pipeline.verify import verify
from holdfast.relay import moving
from holdfast.store.world import wall_clock
from tests.pipeline import lakes
from tests.pipeline.test_retention import TABLES
from tests.postgres import Server
from tests.relay import store
from tests.relay.running import ANSWER_S, RunningRelay, running
from tests.relay.test_retention import SETTINGS

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Pruned:
    """A lake that read a relay before and after it let go of most of its days."""

    lake: Path
    anchor_seq: int
    acknowledged_seq: int
    head_seq: int


@pytest.fixture(scope="module")
def pruned(spark: SparkSession, postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pruned]:
    folder = tmp_path_factory.mktemp("pruned")
    made = make(folder / "world", 60, Random(7), 6, 0, wall_clock(), days=9, as_json=True)
    store.use(postgres)
    try:
        moving.move(Path(made["relay"]), store.where(Path(made["relay"]) / "relay.db"))
        with running(Path(made["relay"]), SETTINGS) as relay:
            place = lakes.place_of(relay, folder)
            first = lakes.run(spark, folder / "lake", place, tables=TABLES)
            assert pages.read_head(place).anchor_seq == 0, "nothing goes before somebody has it"
            (mark,) = first.kept.values()
            assert checkpoint.move(place, mark) is None
            _swept(relay)
            second = lakes.run(spark, folder / "lake", place, tables=TABLES)
            (last,) = second.kept.values()  # and not the relay's head, which goes on as messages expire
            yield Pruned(folder / "lake", pages.read_head(place).anchor_seq, mark.seq, last.seq)
    finally:
        store.use(None)


def _swept(relay: RunningRelay) -> None:
    """Until a whole round of sweeps found nothing more: two of them, for one may be under way."""
    rounds, give_up_at = relay.metric("holdfast_sweeps_total"), time.monotonic() + ANSWER_S
    while relay.metric("holdfast_sweeps_total") < rounds + 2:
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


def test_what_a_lake_acknowledged_is_pruned_and_the_lake_answers_for_it(pruned: Pruned) -> None:
    assert pruned.acknowledged_seq // 2 < pruned.anchor_seq <= pruned.acknowledged_seq
    assert lakes.violations(pruned.lake) == []
    shelf = lakes.shelf_of(pruned.lake, TABLES)
    assert verify(shelf) == []
    sql = "SELECT count(*) AS rows, max(seq) AS last FROM {rows}"
    (found,) = shelf.query("history", shelf.last_run().versions["history"], sql)
    assert found["rows"] == found["last"] == pruned.head_seq > pruned.acknowledged_seq
    gone = f"SELECT * FROM {{rows}} WHERE kind = 'message' AND closed_seq <= {pruned.anchor_seq} LIMIT 1"
    (fate,) = shelf.query("message_fate", shelf.last_run().versions["message_fate"], gone)
    told = archive.trace(shelf, fate["message_id"])
    assert told is not None
    assert fate in told["fates"]
    assert {"accepted", fate["outcome"]} <= {one["kind"] for one in told["entries"]}
