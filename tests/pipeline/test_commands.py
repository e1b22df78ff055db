"""`holdfast pipeline …` as a person uses it: real processes, on the Java that comes as a package, killed in the middle."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from pyspark.sql import SparkSession

from holdfast.cli import pipeline
from holdfast.cli.lake_report import lake_report
from holdfast.cli.output import ExitCode
from holdfast.pipeline import checkpoint
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.plan import Mark
from holdfast.protocol import keys
from holdfast.relay.database import open_relay
from tests.console.window import entered, public_console
from tests.pipeline import lakes
from tests.pipeline.worlds import World, generated
from tests.relay.running import running

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with generated(tmp_path_factory.mktemp("world"), 60) as found:
        yield found


@pytest.fixture(scope="module")
def without_java(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine that has no Java of its own."""
    folder = tmp_path_factory.mktemp("bin")
    for directory in os.environ["PATH"].split(os.pathsep):
        for program in Path(directory).glob("*"):
            if program.name != "java" and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    return {**kept, "PATH": str(folder)}


@pytest.fixture(scope="module")
def lake(world: World, without_java: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake whose first run was killed after its history, and whose second run was told that it was not alone."""
    path = tmp_path_factory.mktemp("lakes") / "lake"
    # The relay knows of the reader: else it writes down that there is one, and the run that goes on has that to read, too.
    (source,) = world.sources
    assert checkpoint.move(world.place, Mark(source.origin, source.head.log_id, 0, None)) is None
    first = subprocess.Popen(
        command("run", path, *source_of(world)), env=without_java, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not (path / "history" / "_delta_log" / f"{1:020d}.json").exists():
            assert first.poll() is None
            time.sleep(0.05)
        first.send_signal(signal.SIGSTOP)  # it has the lake, and gets no further while the second one starts
        second = subprocess.run(command("run", path, *source_of(world), "--json"), capture_output=True, text=True)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert second.returncode == ExitCode.UNAVAILABLE
    assert f"process {first.pid}" in json.loads(second.stderr)["message"]
    assert Lake(path).delta("run") is None  # it had not come so far
    third = subprocess.run(
        command("run", path, *source_of(world), "--json"), env=without_java, capture_output=True, text=True
    )
    assert third.returncode == ExitCode.OK, third.stderr
    (told,) = [json.loads(line) for line in third.stdout.splitlines()]
    assert (told["number"], told["violations"], told["entries"] > 0) == (1, 0, True)
    return path


def command(name: str, lake: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli", "pipeline", name, *options, "--lake", str(lake)]


def source_of(world: World) -> list[str]:
    return ["--relay", world.place.url, "--token-file", str(world.place.token_file)]


def ask(name: str, lake: Path, *options: str) -> Any:
    """What a command prints, on a machine where no Java could be started."""
    told = subprocess.run(
        command(name, lake, *options, "--json"),
        capture_output=True,
        text=True,
        env={**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"},
    )
    assert told.returncode == ExitCode.OK, told.stderr
    return json.loads(told.stdout)


def test_verify_finds_every_row_as_certified_without_java(lake: Path) -> None:
    assert ask("verify", lake) == {"batch": 1, "ok": True, "wrong": [], "uncompared": []}


def test_verify_takes_a_key_in_both_spellings_and_a_misspelt_one_is_no_violation(lake: Path) -> None:
    (row,) = ask("sql", lake, "SELECT DISTINCT pubkey FROM certificate")["rows"]
    for key in (row["pubkey"], keys.npub(row["pubkey"])):
        assert ask("verify", lake, "--pubkey", key)["ok"] is True
    for name, code in ((row["pubkey"].upper(), ExitCode.USAGE), (keys.public_key(b"\x01" * 32), ExitCode.VIOLATION)):
        told = subprocess.run(command("verify", lake, "--pubkey", name), capture_output=True, text=True)
        assert told.returncode == code, told.stderr


@pytest.fixture(scope="module")
def behind(spark: SparkSession, world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that has more to read, and has compared nothing yet."""
    path = tmp_path_factory.mktemp("behind") / "lake"
    lakes.run(spark, path, world.place, entries_max=4)
    return path


def test_verify_says_what_was_not_compared_yet_and_that_is_no_failure(behind: Path, world: World) -> None:
    (source,) = world.sources
    assert ask("verify", behind) == {"batch": 1, "ok": True, "wrong": [], "uncompared": [source.origin]}
    told = subprocess.run(command("verify", behind), capture_output=True, text=True)
    good, rest = told.stdout.splitlines()
    assert (told.returncode, good) == (ExitCode.OK, "✓ every row is as certified, up to batch 1")
    assert rest == f"· not compared yet with what is there now: {source.origin}"


def test_of_a_lake_that_is_not_as_certified_verify_says_nothing_else(behind: Path, tmp_path: Path) -> None:
    copy = tmp_path / "lake"
    shutil.copytree(behind, copy)
    next((copy / "history").glob("day=*/*.parquet")).unlink()
    told = subprocess.run(command("verify", copy, "--json"), capture_output=True, text=True)
    assert (told.returncode, json.loads(told.stdout)["uncompared"]) == (ExitCode.VIOLATION, None)


def test_verify_of_a_changed_lake_ends_with_4(lake: Path, tmp_path: Path) -> None:
    copy = tmp_path / "lake"
    shutil.copytree(lake, copy)
    next((copy / "history").glob("day=*/*.parquet")).unlink()
    told = subprocess.run(command("verify", copy, "--json"), capture_output=True, text=True)
    assert told.returncode == ExitCode.VIOLATION
    assert json.loads(told.stdout)["ok"] is False


def test_the_consoles_audit_page_says_what_the_lake_says(lake: Path, tmp_path: Path) -> None:
    said, (certificate,) = ask("report", lake), ask("sql", lake, "SELECT document FROM certificate")["rows"]
    with public_console(tmp_path, partial(lake_report, lake)) as (window, pages):
        entered(window, pages, "127.0.0.1:7447")
        status, _, page = window.ask("GET", "/console/audit")
        assert status == 200
        assert hashlib.sha256(certificate["document"].encode()).hexdigest()[:12] in page
        assert "no rule is broken" in page
        latency = json.loads(window.ask("GET", "/console/audit/latency")[2])
    assert latency["lines"]["p99"] == [hour["p99"] for hour in said["latency"]] != []


def test_show_lists_the_tables_and_their_rows_without_java(lake: Path) -> None:
    tables = {one["table"]: one for one in ask("show", lake)["tables"]}
    assert tables["run"]["rows"] == tables["certificate"]["rows"] == 1
    assert len(ask("show", lake, "history", "--limit", "3")["rows"]) == 3


def test_search_finds_messages_by_what_a_relay_saw_of_them_without_java(lake: Path) -> None:
    (sent, *_) = ask("sql", lake, "SELECT * FROM history WHERE kind = 'accepted' ORDER BY seq DESC LIMIT 1")["rows"]
    told = ask("search", lake, sent["sender"].upper(), sent["message_id"][4:20])
    assert (told["scope"], [hit["message_id"] for hit in told["hits"]]) == ("metadata", [sent["message_id"]])


def test_trace_tells_all_of_a_message_without_java(lake: Path) -> None:
    (sent, *_) = ask("sql", lake, "SELECT message_id FROM message_fate WHERE outcome = 'delivered' LIMIT 1")["rows"]
    told = ask("trace", lake, sent["message_id"])
    assert told["entries"][0]["kind"] == "accepted"
    assert told["fates"][0]["outcome"] == "delivered"


def test_sql_answers_from_this_lake_and_nothing_else_without_java(lake: Path, tmp_path: Path) -> None:
    told = ask("sql", lake, "SELECT count(*) AS entries FROM history")
    assert told["rows"][0]["entries"] == lakes.shelf_of(lake).rows("history", 1)
    (tmp_path / "other.csv").write_text("a\n1\n")
    query = f"SELECT * FROM read_csv('{tmp_path}/other.csv')"
    refused = subprocess.run(command("sql", lake, query), capture_output=True, text=True)
    assert refused.returncode == ExitCode.ERROR
    assert "disabled" in refused.stderr


def test_a_lake_is_compacted_vacuumed_and_set_aside_without_java(lake: Path, tmp_path: Path) -> None:
    copy = tmp_path / "lake"
    shutil.copytree(lake, copy)
    left = copy / "usage" / "left.parquet"
    left.write_bytes(b"of a run that was killed")
    ask("compact", copy)
    assert ask("vacuum", copy, "--hours", "0")["removed"] > 0
    assert not left.exists()
    assert ask("verify", copy)["ok"] is True
    aside = Path(ask("backfill", copy, "--anew")["aside"])
    assert ask("verify", aside)["ok"] is True
    assert not (copy / "history").exists()
    assert (copy / ".holdfast" / "lake.key").read_bytes() == (aside / ".holdfast" / "lake.key").read_bytes()


def test_a_table_that_cannot_be_computed_anew_is_told(lake: Path) -> None:
    told = subprocess.run(command("backfill", lake, "certificate"), capture_output=True, text=True)
    assert (told.returncode, "there is no table certificate" in told.stderr) == (ExitCode.NOT_FOUND, True)


def test_the_report_is_one_page_that_asks_for_nothing(lake: Path, tmp_path: Path) -> None:
    told = ask("report", lake)
    assert told["balance_holds"] is True
    assert told["findings"] == [] or {"kind", "key", "detail"} <= set(told["findings"][0])
    assert told["latency"]
    subprocess.run(command("report", lake, "--out", str(tmp_path / "page.html")), check=True, capture_output=True)
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page
    assert "Every recipient of every message is accounted for" in page
    for outside in ("http://", "https://", "<script", "src=", "@import", "url("):
        assert outside not in page


def test_a_lake_that_is_not_there_is_told(tmp_path: Path) -> None:
    told = subprocess.run(command("show", tmp_path / "none"), capture_output=True, text=True)
    assert told.returncode == ExitCode.NOT_FOUND
    assert "there is no lake here" in told.stderr


@pytest.mark.usefixtures("spark")
def test_a_run_that_finds_a_violation_ends_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, whose Spark is warm."""
    with running(tmp_path / "data") as relay:
        relay.found_mesh("anna", "ben")
    engine = open_relay(tmp_path / "data" / "relay.db")
    with engine.write() as transaction:
        transaction.run("DELETE FROM history WHERE seq = :seq", {"seq": 2})
    engine.close()
    with lakes.running_damaged(tmp_path / "data") as relay:
        place = lakes.place_of(relay, tmp_path)
        told, alarms = [], []
        for _ in range(2):
            with pytest.raises(typer.Exit) as ended:
                pipeline.run(
                    relay=place.url,
                    lake=tmp_path / "lake",
                    token_file=Path(str(place.token_file)),
                    on_violation=f"mkdir {tmp_path / 'alarm'}",
                    as_json=True,
                )
            assert ended.value.exit_code == ExitCode.VIOLATION
            told.append(json.loads(capsys.readouterr().out))
            alarms.append(len(list(tmp_path.glob("alarm"))))
            for alarm in tmp_path.glob("alarm"):
                alarm.rmdir()
    assert told[0]["violations"] == told[0]["new_violations"] == told[1]["violations"] > 0
    assert (told[1]["new_violations"], alarms) == (0, [1, 0]), "what is known already is no alarm"
    assert "was not told that its entries after 0 are kept" in told[0]["problem"]
    assert "holdfast_pipeline_violations 0" not in (tmp_path / "lake" / "metrics.prom").read_text()
