"""Worlds of a few seeds, in the ordinary run: they keep the contract, and the same seed is the same world, byte for byte."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.world.faults import FAULTS
from tests.world.mutants import FOUND, MUTANTS, SEEDS_MAX, prepare
from tests.world.oracle import RULES

ROOT = Path(__file__).parents[2]
SECONDS = 180
FAULTS_PER_HOUR_MIN = 20
MUTANTS_MIN = 15


def _run(*arguments: str, hash_seed: str = "0") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.world", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def worlds() -> "list[subprocess.CompletedProcess[str]]":
    """Two seeds, and the second of them once more in a process that begins with other hashes."""
    seconds = ("--seconds", str(SECONDS))
    return [
        _run("--seed", "1", *seconds),
        _run("--seed", "2", *seconds),
        _run("--seed", "2", *seconds, hash_seed="random"),
    ]


def test_a_world_in_which_everything_goes_wrong_keeps_the_contract(
    worlds: "list[subprocess.CompletedProcess[str]]",
) -> None:
    for done in worlds:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 worlds, 0 of them with a finding" in done.stdout


def test_the_same_seed_is_the_same_world_byte_for_byte(worlds: "list[subprocess.CompletedProcess[str]]") -> None:
    first, second, again = (re.findall(r"trace (\w+), files (\w+)", done.stdout) for done in worlds)
    assert second == again
    assert first != second


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
    assert len(FOUND) >= MUTANTS_MIN
    assert {mutant.seed for mutant in FOUND} <= set(range(SEEDS_MAX))
    for mutant in MUTANTS:
        prepare(mutant, tmp_path / mutant.name)
