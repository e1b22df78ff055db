"""From two homes that write to each other to what one of them finds: real daemons, an index, and no Java to ask it with."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.cli import pipeline, pipeline_lake, pipeline_upkeep
from holdfast.cli.at_lake import open_shelf
from holdfast.cli.output import ExitCode, Failure
from holdfast.pipeline.lake import Lake, LakeOther, LakeShown
from holdfast.pipeline.runner import Runner
from holdfast.pipeline.searching import NothingAsked, search_messages
from holdfast.pipeline.table import load
from tests.cli.person import Person, founder, member_of
from tests.relay.running import running

TEXTS = (
    "The kettle is on: tea at four?",
    "Tea, tea, tea! Nothing but tea in this kitchen",
    "Kein Tee mehr, nur noch Kaffee",
    "the door code is 4711",
)
ANSWER = "Gr\u00fc\u00dfe aus der Ku\u0308che, and no tea for me"  # one dotted u in one character, one in two

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """Ben, to whom Ann wrote, and who answered."""
    folder = tmp_path_factory.mktemp("search")
    with running(folder / "relay") as relay:
        ann = founder(Person(folder / "ann"), relay.url)
        ben = member_of(Person(folder / "ben"), ann)
        with ann.daemon(), ben.daemon():
            for person in (ann, ben):  # who has not looked at the mesh yet knows nobody to write to
                person.until(lambda client: len(client.peers().peers) == 2)
            with ann.client() as client:
                for text in TEXTS:
                    client.send("ben", text)
            with ben.client() as client:
                client.send("ann", ANSWER)
            ben.until(lambda client: len(client.inbox().messages) == len(TEXTS))
            yield ben


@pytest.fixture(scope="module")
def lake(spark: SparkSession, homes: Person, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lakes") / "my own lake"
    pipeline.index(lake=path, device=[str(homes.home / "daemon.sock")], as_json=True)
    return path


def found(lake: Path, asked: str) -> list[dict[str, Any]]:
    return search_messages(open_shelf(lake), asked, 20)


def snippets(lake: Path, asked: str) -> list[str]:
    return [hit["snippet"] for hit in found(lake, asked)]


@pytest.mark.parametrize(("asked", "code"), [("4711", ExitCode.OK), ("absent", ExitCode.NOT_FOUND)])
def test_no_java_is_needed_to_search(lake: Path, asked: str, code: ExitCode) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "pipeline", "search", asked, "--lake", str(lake), "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"},
    )
    assert told.returncode == code, told.stderr
    document = json.loads(told.stdout)
    assert (document["scope"], len(document["hits"])) == ("messages", 1 if code is ExitCode.OK else 0)


def test_the_message_that_says_it_most_comes_first_and_shows_where(lake: Path) -> None:
    hits = found(lake, "TEA")
    assert [hit["snippet"] for hit in hits] == [TEXTS[1], TEXTS[0], ANSWER]
    assert [TEXTS[1][start:end] for start, end in hits[0]["matches"]] == ["Tea", "tea", "tea", "tea"]
    assert [(hit["direction"], hit["peer_name"]) for hit in hits] == [("received", "ann")] * 2 + [("sent", None)]


def test_a_rare_word_weighs_more_than_a_common_one_and_more_words_more_than_fewer(lake: Path) -> None:
    assert snippets(lake, "tea kettle")[0] == TEXTS[0]
    assert snippets(lake, "küche code") == [TEXTS[3], ANSWER]


def test_beginnings_and_numbers_are_found_and_parts_of_words_are_not(lake: Path) -> None:
    assert {*snippets(lake, "k*")} == {*TEXTS[:3], ANSWER}
    assert snippets(lake, "4711") == [TEXTS[3]]
    assert snippets(lake, "kett") == []


@pytest.mark.parametrize(
    ("asked", "shown"),
    [("gru\u0308\u00dfe", "Gr\u00fc\u00dfe"), ("k\u00fcche", "Ku\u0308che"), ("K\u00dcC*", "Ku\u0308che")],
)
def test_a_word_is_found_whichever_way_its_marks_were_typed(lake: Path, asked: str, shown: str) -> None:
    (hit,) = found(lake, asked)
    assert hit["snippet"] == ANSWER
    assert [ANSWER[start:end] for start, end in hit["matches"]] == [shown]


def test_words_that_are_made_anew_are_found_like_the_first(lake: Path) -> None:
    before = found(lake, "k*")
    pipeline_upkeep.backfill(lake, ["search_posting"], as_json=True)
    assert found(lake, "k*") == before


def test_what_has_no_word_in_it_is_refused(lake: Path) -> None:
    with pytest.raises(NothingAsked, match="at least one word"):
        found(lake, "?!")


def test_nobody_else_can_look_into_the_index(lake: Path, homes: Person) -> None:
    assert lake.stat().st_mode & 0o777 == 0o700
    lake.chmod(0o755)
    try:
        with pytest.raises(LakeShown, match="chmod 700"):
            pipeline.index(lake=lake, device=[str(homes.home / "daemon.sock")])
        with pytest.raises(LakeShown, match="chmod 700"):
            pipeline_upkeep.backfill(lake=lake, tables=["search_posting"])
    finally:
        lake.chmod(0o700)


def test_what_only_a_relays_lake_can_answer_is_said(lake: Path) -> None:
    with pytest.raises(Failure, match="ask it with `search`"):
        pipeline_lake.report(lake)
    with pytest.raises(Failure, match="ask it with `search`"):
        pipeline_lake.trace("any", lake)


def test_an_index_is_no_relays_lake(spark: SparkSession, lake: Path) -> None:
    with pytest.raises(LakeOther, match="search_message"):
        Runner(lambda: spark, Lake(lake), load()).run_batch([], full=True)


@pytest.mark.usefixtures("spark")
def test_an_index_that_was_killed_hides_what_it_left_and_goes_on(homes: Person, tmp_path: Path) -> None:
    path, device = tmp_path / "killed", str(homes.home / "daemon.sock")
    command = [sys.executable, "-m", "holdfast.cli", "pipeline", "index", "--lake", str(path), "--device", device]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (path / "history" / "_delta_log" / f"{1:020d}.json").exists():
            assert killed.poll() is None
            time.sleep(0.05)
        (room,) = [one for one in path.glob(".holdfast/spark") if any(one.glob("blockmgr-*"))]
    finally:
        killed.kill()
        killed.wait()
    assert room.stat().st_mode & 0o777 == 0o700
    assert found(path, "tea") == []
    with pytest.raises(LakeOther, match="index of messages"):
        pipeline.run(relay="http://127.0.0.1:1", lake=path)
    pipeline.index(lake=path, device=[device], as_json=True)
    assert snippets(path, "4711") == [TEXTS[3]]


def test_an_index_that_is_computed_anew_is_sorted_where_nobody_else_looks(lake: Path, tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "lake", tmp_path / "elsewhere"
    shutil.copytree(lake, path)
    room = path / ".holdfast" / "spark"
    command = [sys.executable, "-m", "holdfast.cli", "pipeline", "backfill", "search_posting", "--lake", str(path)]
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(elsewhere)}
    anew = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    used: set[Path] = set()
    while anew.poll() is None:
        used |= {one for one in (elsewhere, room) if any(one.glob("blockmgr-*"))}
        time.sleep(0.05)
    said, _ = anew.communicate()
    assert anew.returncode == ExitCode.OK, said
    assert used == {room}
    assert room.stat().st_mode & 0o777 == 0o700
    assert snippets(path, "4711") == [TEXTS[3]]
