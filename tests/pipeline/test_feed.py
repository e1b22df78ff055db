"""A running relay's feed: what the lake says is current is what the relay hands over, and a difference is found."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
from pyspark.sql import SparkSession

from tests.pipeline import lakes
from tests.relay.feed_client import Author, Feed, bootstrap, open_feed

AUTHORS = (Author("ann"), Author("bob"))
TABLES = lakes.with_what_they_need("orphan", "conflict")


def _edit(feed: Feed, random: Random, clocks: dict[tuple[str, str], dict[str, int]], times: int) -> None:
    """Two devices edit some documents; now and then one does not know of the other."""
    for _ in range(times):
        author, d, device = random.choice(AUTHORS), f"doc-{random.randrange(6)}", random.choice(("A", "B"))
        known = clocks.setdefault((author.name, d), {})
        counter = known[device] = known.get(device, 0) + 1
        seen = known if random.random() < 0.7 else {device: counter}
        event = author.snapshot(d, dict(seen), o=random.choice(("put", "put", "del")), at_s=author.now_s + counter)
        feed.offered(event)


def _handed_over(feed: Feed) -> set[tuple[str, str]]:
    """Document and event of what the relay says is current."""
    found = set()
    with feed.client() as client:
        for author in AUTHORS:
            for frame in client.ask_changes(bootstrap(author)):
                if frame[2] == "SNAPSHOT":
                    event = frame[-1]
                    found.add((dict(tag[:2] for tag in event["tags"])["d"], event["id"]))
    return found


def _current(path: Path) -> list[dict[str, Any]]:
    shelf = lakes.shelf_of(path, TABLES)
    return shelf.query("current_snapshot", shelf.last_run().versions["current_snapshot"], "SELECT * FROM {rows}")


@contextmanager
def _tampered(database: Path, seq: int) -> Iterator[None]:
    """What is current is hidden, as if it had come too late, while the block runs."""
    with closing(apsw.Connection(str(database))) as connection:
        connection.execute("UPDATE snapshot SET superseded_seq = seq WHERE seq = ?", (seq,))
        yield
        connection.execute("UPDATE snapshot SET superseded_seq = NULL WHERE seq = ?", (seq,))


@pytest.mark.timeout(600)
def test_the_lake_says_what_the_relay_hands_over_and_finds_where_it_does_not(
    spark: SparkSession, tmp_path: Path, lake_path: Path
) -> None:
    random, clocks = Random(3), dict[tuple[str, str], dict[str, int]]()
    with open_feed(tmp_path / "relay") as feed:
        place = lakes.place_of(feed.relay, tmp_path)
        for _ in range(2):
            _edit(feed, random, clocks, 60)
            lakes.run(spark, lake_path, place, full=False, tables=TABLES)
            rows = _current(lake_path)
            assert {(row["d"], row["event_id"].hex()) for row in rows} == _handed_over(feed)
        assert lakes.findings(lake_path, TABLES) == []
        assert {row["count"] for row in _conflicts(lake_path)} >= {2}
        hidden = rows[0]["seq"]
        with _tampered(tmp_path / "relay" / "relay.db", hidden):
            lakes.run(spark, lake_path, place, full=True, tables=TABLES)
    ((kind, key),) = lakes.findings(lake_path, TABLES)
    assert (kind, key.rpartition("/")[2]) == ("snapshot_differs", str(hidden))


def _conflicts(path: Path) -> list[dict[str, Any]]:
    shelf = lakes.shelf_of(path, TABLES)
    return shelf.query("conflict", shelf.last_run().versions["conflict"], "SELECT * FROM {rows}")
