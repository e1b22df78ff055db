"""Worlds of a few seeds, in the ordinary run: they keep the contract, and the same seed is the same world, byte for byte."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from holdfast.store.sqlite import SqliteEngine
from tests.world import founding
from tests.world.faults import FAULTS
from tests.world.machine import Machine
from tests.world.mutants import MUTANTS, SEEDS_MAX, prepare
from tests.world.oracle import RULES, judge
from tests.world.places import choose
from tests.world.world import World

ROOT = Path(__file__).parents[2]
SECONDS = 180
FAULTS_PER_HOUR_MIN = 20
MUTANTS_MIN = 15
SEVERAL = 1  # a seed with three relays
ALONE = 2  # one with one relay

pytestmark = pytest.mark.timeout(900)  # worlds take a minute and a half beside other work, and a slow machine longer


def _run(*arguments: str, hash_seed: str = "0") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.world", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def worlds() -> "list[subprocess.CompletedProcess[str]]":
    """Two seeds beside each other, and the first of them once more, alone, in a process that begins with other hashes."""
    seconds = ("--seconds", str(SECONDS))
    return [
        _run("--first", str(SEVERAL), "--seeds", "2", "--jobs", "2", *seconds),
        _run("--seed", str(SEVERAL), *seconds, hash_seed="random"),
    ]


def test_worlds_in_which_everything_goes_wrong_keep_the_contract(
    worlds: "list[subprocess.CompletedProcess[str]]",
) -> None:
    for number, done in zip((2, 1), worlds, strict=True):
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{number} worlds, 0 of them with a finding" in done.stdout


def test_the_same_seed_is_the_same_world_byte_for_byte(worlds: "list[subprocess.CompletedProcess[str]]") -> None:
    beside, alone = (dict(re.findall(r"seed (\d+).* trace (\w+, files \w+)", done.stdout)) for done in worlds)
    assert alone[str(SEVERAL)] == beside[str(SEVERAL)]
    assert len(set(beside.values())) == 2


def test_some_worlds_have_one_relay_and_some_have_several() -> None:
    counts = [len(choose(seed).relays) for seed in range(20)]
    assert {1, 2, 3} == set(counts)
    assert counts[SEVERAL] == 3
    assert all(choose(seed).followed("ada")[1:] == (("south",) if counts[seed] > 1 else ()) for seed in range(20))


def test_everything_that_was_asked_for_while_a_world_began_may_be_said_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = founding.begin

    async def begin_and_repeat(world: World) -> None:
        await begin(world)
        for connection in list(world.internet.past):
            world.internet.repeat(connection)

    monkeypatch.setattr(founding, "begin", begin_and_repeat)
    world = World(ALONE, tmp_path, seconds=1)
    world.run()
    assert judge(world) == []


def test_a_relay_whose_disk_is_full_when_it_starts_leaves_no_database_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, opened = World(0, tmp_path, SECONDS), []
    machine = next(iter(world.relays.values()))

    def engine(path: str) -> SqliteEngine:
        opened.append(Machine.engine(machine, path))
        return opened[-1]

    monkeypatch.setattr(machine, "engine", engine)
    machine.is_full = True
    machine.start()
    world.loop.run_until_complete(asyncio.sleep(1))
    world.loop.close()
    assert not machine.is_up
    with pytest.raises(apsw.ConnectionClosedError):
        opened[0]._writer.execute("SELECT 1")


def test_faults_fall_often_enough() -> None:
    assert sum(fault.per_hour for fault in FAULTS) >= FAULTS_PER_HOUR_MIN
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_every_point_of_the_contract_has_its_rules() -> None:
    assert {rule.point for rule in RULES} == set(range(1, 8))
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_documentation_names_every_rule_and_every_mutant() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert [rule.name for rule in RULES if rule.name not in page] == []
    assert [mutant.name for mutant in MUTANTS if f"`{mutant.name}` | {mutant.why}" not in page] == []


def test_every_mutant_can_still_be_made_and_enough_have_a_seed_that_finds_them(tmp_path: Path) -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    seeds = [mutant.seed for mutant in MUTANTS if mutant.seed is not None]
    assert len(seeds) >= MUTANTS_MIN
    assert set(seeds) <= set(range(SEEDS_MAX))
    for mutant in MUTANTS:
        prepare(mutant, tmp_path / mutant.name)
