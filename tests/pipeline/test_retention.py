"""A relay that prunes what the lake has, while both go on: nothing is missed, and the lake answers for what is gone."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline import archive, checkpoint, pages
from holdfast.pipeline.verify import verify
from tests.pipeline import lakes
from tests.pipeline.worlds import World, generated
from tests.relay.running import ANSWER_S
from tests.relay.test_retention import SETTINGS

TABLES = lakes.with_what_they_need(
    *("orphan", "chain_break", "sequence_gap", "equivocation", "receipt_forged", "conflict"),
    *("message_fate", "fate_open", "receipt"),
)
"""All that finds something wrong, and what tells of messages."""

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Pruned:
    """A relay that let go of most of its days, the lake that had read them, and one that came too late."""

    world: World
    lake: Path
    late: Path
    anchor_seq: int
    head_seq: int


@pytest.fixture(scope="module")
def pruned(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pruned]:
    folder = tmp_path_factory.mktemp("pruned")
    with generated(folder, 100, settings=SETTINGS) as world:
        first = lakes.run(spark, folder / "lake", world.place, tables=TABLES)
        assert pages.read_head(world.place).anchor_seq == 0, "nothing goes before somebody has it"
        assert checkpoint.move(world.place, first.kept[world.sources[0].origin]) is None
        _swept(world)
        lakes.run(spark, folder / "lake", world.place, tables=TABLES)
        lakes.run(spark, folder / "late", world.place, tables=TABLES)
        head = pages.read_head(world.place)
        yield Pruned(world, folder / "lake", folder / "late", head.anchor_seq, first.entries)


def _swept(world: World) -> None:
    """Until a whole round of sweeps found nothing more: two of them, for one may be under way."""
    rounds, give_up_at = world.relay.metric("holdfast_sweeps_total"), time.monotonic() + ANSWER_S
    while world.relay.metric("holdfast_sweeps_total") < rounds + 2:
        assert time.monotonic() < give_up_at
        time.sleep(0.1)


def test_most_of_the_history_went_and_nothing_that_the_lake_lacks(pruned: Pruned) -> None:
    assert pruned.head_seq // 2 < pruned.anchor_seq <= pruned.head_seq


def test_a_lake_goes_on_across_the_cut_and_has_every_entry_that_ever_was(pruned: Pruned) -> None:
    assert lakes.violations(pruned.lake) == []
    shelf = lakes.shelf_of(pruned.lake)
    assert verify(lakes.shelf_of(pruned.lake, TABLES)) == []
    sql = "SELECT count(*) AS rows, max(seq) AS last FROM {rows}"
    (found,) = shelf.query("history", shelf.last_run().versions["history"], sql)
    assert found["rows"] == found["last"] > pruned.head_seq


def test_the_lake_tells_all_of_a_message_that_its_relay_has_forgotten(pruned: Pruned) -> None:
    shelf = lakes.shelf_of(pruned.lake)
    # Of one recipient: another's copy may have expired since, and the relay waits until the lake has that, too.
    alone = "outcome = 'delivered' AND kind = 'message' AND destination_kind = 'dm'"
    sql = f"SELECT * FROM {{rows}} WHERE {alone} AND closed_seq <= {pruned.anchor_seq} LIMIT 1"
    (fate,) = shelf.query("message_fate", shelf.last_run().versions["message_fate"], sql)
    headers = {"authorization": f"Bearer {pruned.world.place.token}"}
    path = f"/v1/export/message?after={fate['accepted_seq'] - 1}&until={fate['accepted_seq']}"
    assert pruned.world.relay.ask("GET", path, headers=headers).headers["holdfast-rows"] == "0"
    found = archive.trace(shelf, fate["message_id"])
    assert found is not None
    assert found["entries"][0]["kind"] == "accepted"
    assert {"delivered", "pruned"} <= {one["kind"] for one in found["entries"]}
    assert fate in found["fates"]
    by_own_id = archive.trace(shelf, found["entries"][0]["client_message_id"])
    assert by_own_id is not None
    assert found["entries"] == [one for one in by_own_id["entries"] if one["message_id"] == fate["message_id"]]
    assert archive.trace(shelf, "nobody's") is None


def test_a_lake_that_comes_too_late_says_so_and_accuses_nobody(pruned: Pruned) -> None:
    assert lakes.violations(pruned.late) == []
    assert ("began_late", f"1-{pruned.anchor_seq}") in [
        (kind, key.rpartition("/")[2]) for kind, key in lakes.findings(pruned.late)
    ]
