"""The pipeline where Spark runs elsewhere: on machines that lack this package, and that may go away in the middle."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.output import ExitCode
from holdfast.pipeline import few
from tests.cluster import cluster
from tests.cluster.cluster import Cluster
from tests.pipeline import lakes
from tests.pipeline.worlds import World, generated

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

POLL_S = 0.1
PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    # More entries than the driver takes over by itself: tasks are to, and they lack this package.
    with generated(tmp_path_factory.mktemp("world"), 4_500, homes=1) as found:
        assert sum(source.head.seq for source in found.sources) > few.ROWS_MAX
        yield found


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster.standalone(tmp_path_factory.mktemp("standalone")) as found:
        yield found


@pytest.fixture(scope="module")
def at_home(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the lake holds when nothing but this machine works on it."""
    folder = tmp_path_factory.mktemp("at_home")
    assert _end(_start(world, folder, {}))["violations"] == 0
    return lakes.contents(folder / "lake")


def test_two_workers_without_this_package_build_the_lake_that_one_machine_builds(
    world: World, standalone: Cluster, at_home: dict[str, list[str]], tmp_path: Path
) -> None:
    before = standalone.executors()
    told = _end(_start(world, tmp_path, standalone.environment, "--master", standalone.address))
    assert (told["number"], told["violations"]) == (1, 0)
    check_same(tmp_path / "lake", at_home)
    assert before == {}
    assert {name: count > 0 for name, count in standalone.executors().items()} == {"0": True, "1": True}


def test_the_documented_spark_submit_builds_it_too(
    world: World, standalone: Cluster, at_home: dict[str, list[str]], tmp_path: Path
) -> None:
    before = sum(standalone.executors().values())
    told = _end(_submit(world, tmp_path, standalone))
    assert (told["number"], told["violations"]) == (1, 0)
    check_same(tmp_path / "lake", at_home)
    assert sum(standalone.executors().values()) > before


def test_a_spark_connect_server_without_this_package_builds_it_too(
    world: World, at_home: dict[str, list[str]], tmp_path: Path
) -> None:
    with cluster.connect(tmp_path) as server:
        told = _end(_start(world, tmp_path, server.environment, "--remote", server.address))
        assert (told["number"], told["violations"]) == (1, 0)
        check_same(tmp_path / "lake", at_home)
        assert sum(server.executors().values()) > 0


def test_a_worker_that_dies_in_the_middle_changes_nothing(
    world: World, standalone: Cluster, at_home: dict[str, list[str]], tmp_path: Path
) -> None:
    run = _start(world, tmp_path, standalone.environment, "--master", standalone.address)
    while not (tmp_path / "lake" / "history" / "_delta_log" / f"{1:020d}.json").exists():
        assert run.poll() is None, run.communicate()
        time.sleep(POLL_S)
    standalone.programs[1].process.kill()  # and its executor ends with it
    assert _end(run)["violations"] == 0
    check_same(tmp_path / "lake", at_home)


def check_same(lake: Path, at_home: dict[str, list[str]]) -> None:
    """Everything is as at home, but that the relay knows of one more reader: each lake is an entry in its history."""
    found = lakes.contents(lake)
    more = set(found["history"]) - set(at_home["history"])
    assert set(at_home["history"]) < set(found["history"])
    assert all("'destination_kind': 'consumer'" in row for row in more)
    for name in at_home.keys() - {"history", "extent", "audit_log"}:
        assert found[name] == at_home[name], name


def _start(world: World, folder: Path, environment: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
    sources = ["--relay", world.place.url, "--token-file", str(_token_file(world, folder)), *_devices(world)]
    command = [sys.executable, "-m", "holdfast.cli", "pipeline", "run", *sources, "--lake", "lake", *options]
    return _started([*command, "--json"], folder, environment)


def _submit(world: World, folder: Path, standalone: Cluster) -> subprocess.Popen[str]:
    """What the operator's page says, with our names in place of those that stand there."""
    (command,) = re.findall(r"^(?:\w+=\S+ )*spark-submit (?:.*\\\n)*.*$", PAGE, re.MULTILINE)
    ours = {
        "/opt/python/bin/python": standalone.environment["PYSPARK_PYTHON"],
        "spark://spark:7077": standalone.address,
        "URL": world.place.url,
        "/shared/lake": str(folder / "lake"),
        "/shared/token": str(_token_file(world, folder)),
    }
    for name, value in ours.items():
        assert name in command
        command = command.replace(name, value)
    programs = f"{Path(sys.executable).parent}:{cluster.SPARK_HOME / 'bin'}:{os.environ['PATH']}"
    more = shlex.join(["--json", *_devices(world)])
    return _started(["bash", "-c", f"{command} {more}"], folder, {**standalone.environment, "PATH": programs})


def _token_file(world: World, folder: Path) -> Path:
    found = folder / "token"
    found.write_text(world.relay.token("--consumer", folder.name.replace("_", "-")[-40:]))  # a name for each lake
    return found


def _devices(world: World) -> list[str]:
    return [part for one in world.devices for part in ("--device", one.url)]


def _started(command: list[str], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=folder,  # which is not that of any other program: a relative path must not reach them
        env=dict(environment) or None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(run: "subprocess.Popen[str]") -> dict[str, Any]:
    out, errors = run.communicate()
    assert run.returncode == ExitCode.OK, errors
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told
