"""Relays, daemons, hook workers and a pipeline in one storm: nothing that was acknowledged is lost, comes twice or out of order."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.storm import command
from tests.postgres import Server

CYCLES = os.environ.get("HOLDFAST_CRASH_CYCLES")
ROUNDS = int(CYCLES or "7")  # each blow once
AUDITED_ROUNDS = int(CYCLES or "12")
ROOT = Path(__file__).parents[2]


Record = Callable[[str, object], None]


def _storm(record: Record, place: Path, rounds: int, *words: str) -> dict[str, Any]:
    """What a storm says of itself, once everything that it was told has been found again."""
    done = subprocess.run(
        command("--rounds", str(rounds), "--seed", str(rounds), "--place", str(place), *words),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    told: dict[str, Any] = json.loads(done.stdout)
    assert sum(told["blows"].values()) == rounds
    assert told["unanswered"] > 0, "nobody was struck while somebody asked"
    counted = {name: told[name] for name in ("sends", "arrivals", "hook events", "pipelines killed")}
    for what, number in (told["blows"] | counted).items():
        record(what, number)
    return told


@pytest.mark.timeout(0 if CYCLES else 900)
def test_what_was_acknowledged_in_a_storm_arrives_once_and_in_order(record_property: Record, tmp_path: Path) -> None:
    _storm(record_property, tmp_path, ROUNDS)


@pytest.mark.long
@pytest.mark.timeout(0 if CYCLES else 900)
def test_the_same_of_two_relays_on_one_database(record_property: Record, tmp_path: Path, postgres: Server) -> None:
    _storm(record_property, tmp_path, ROUNDS, "--store", postgres.database())


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(0 if CYCLES else 1_800)
@pytest.mark.parametrize("engine", ["sqlite", "postgres"] if CYCLES else ["sqlite"])
def test_spark_finds_the_balance_whole_after_a_storm(
    record_property: Record, tmp_path: Path, postgres: Server, engine: str
) -> None:
    told = _storm(
        record_property,
        tmp_path,
        AUDITED_ROUNDS,
        "--audit",
        *(["--store", postgres.database()] if engine == "postgres" else []),
    )
    assert told["pipelines killed"] > 0
    assert told["balance"]["delivered"] > told["arrivals"], "receipts are delivered, too"
