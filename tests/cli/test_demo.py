"""`holdfast demo`: a story whose every step is found out, and that says so when one does not hold."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import demo, demo_lake, demo_log, demo_mesh
from holdfast.cli.demo_story import Step
from holdfast.cli.demo_world import Missing, NotHeld, World, command, process
from holdfast.device.holder import is_alive
from holdfast.store.sqlite import SqliteEngine
from tests.cli.person import PATIENCE_S


def _says(text: str) -> Callable[[World], str]:
    return lambda world: text


def _raises(error: Exception) -> Callable[[World], str]:
    def show(world: World) -> str:
        (world.folder / "left").touch()
        raise error

    return show


HOLDS = Step("it holds", _says("seen"))
STORIES: dict[str, tuple[list[Step], int, list[str]]] = {
    "all hold": ([HOLDS, HOLDS], 0, ["held", "held"]),
    "one does not": ([HOLDS, Step("x", _raises(NotHeld("no"))), HOLDS], 4, ["held", "failed", "not tried"]),
    "one breaks": ([Step("x", _raises(KeyError("url"))), HOLDS], 4, ["failed", "not tried"]),
    "one lacks something": ([HOLDS, Step("x", _raises(Missing("install it")))], 5, ["held", "missing"]),
    "a command fails": ([Step("x", lambda world: command("log", "list", "/nowhere/log").stdout)], 4, ["failed"]),
}


@pytest.mark.parametrize("name", STORIES)
def test_the_demo_ends_well_only_if_every_step_held(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, code, states = STORIES[name]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert demo.show(steps, keep=False, as_json=True) == code
    told = json.loads(capsys.readouterr().out)
    assert [one["state"] for one in told["steps"]] == states
    assert told["ok"] is (code == 0)
    left = list(tmp_path.glob("holdfast-demo-*"))
    assert [str(one) for one in left] == ([] if code == 0 else [told["folder"]]), "what failed can be looked at"


def test_a_person_is_told_what_was_seen_and_what_was_not_tried(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    steps = [HOLDS, Step("this is not so", _raises(NotHeld("it was otherwise"))), Step("and then", _says("unseen"))]
    demo.show(steps, keep=False, as_json=False)
    told = capsys.readouterr().out
    assert "✓ it holds\n    seen\n" in told
    assert "✗ this is not so\n    it was otherwise\n" in told
    assert "not tried" in told
    assert "unseen" not in told
    assert "1 of 3 steps held" in told
    assert "\x1b" not in told, "this is no terminal"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_a_relay_that_lost_a_message_does_not_hold(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    demo_mesh.meet(world)
    demo_mesh.send_to_somebody_away(world)
    world.stop_relay(signal.SIGTERM)
    with closing(SqliteEngine(world.data / "relay.db")) as engine, engine.write() as transaction:
        transaction.run("DELETE FROM delivery WHERE seq = (SELECT max(seq) FROM delivery)")
    world.start_relay()
    with pytest.raises(NotHeld, match=r"relay\.db breaks a rule"):
        demo_mesh.kill_the_relay(world)
    with monkeypatch.context() as hurry, pytest.raises(NotHeld, match="Bob has not got everything"):
        hurry.setattr(world, "patience_s", 1.0)  # for what does not happen
        demo_mesh.come_back(world)


def test_a_process_that_dies_by_itself_has_not_shown_that_it_survives(world: World) -> None:
    (world.folder / demo_log.LOG).mkdir()
    with pytest.raises(NotHeld, match="ended by itself after 0 of"):
        demo_log.survive(world)


def test_what_a_user_has_set_for_their_own_home_is_not_for_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DAEMON_LOG_LEVEL", "nonsense")
    monkeypatch.setenv("HOLDFAST_HOME", "/nowhere")
    assert "HOLDFAST_DAEMON_LOG_LEVEL=nonsense" not in _environment_of_a_command()
    assert "HOLDFAST_HOME=/nowhere" not in _environment_of_a_command()


def _environment_of_a_command() -> str:
    with process("daemon", "logs", "--follow") as started:
        return Path(f"/proc/{started.pid}/environ").read_bytes().replace(b"\0", b"\n").decode()


CUT_SHORT = """
import os, signal, sys
from holdfast.cli import demo
from holdfast.cli.demo_story import Step

def begin(world):
    world.start_relay()
    world.run(world.alice, "mesh", "create", "friends", "--relay", world.url, "--as", "alice")
    world.run(world.alice, "daemon", "up")
    pids = world.relay_pid, world.client(world.alice).health().pid
    (world.alice / "daemon.sock").unlink()  # as if it were only starting
    print(*pids, flush=True)
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return "never"

demo.show([Step("x", begin)], keep=True, as_json=True)
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """An empty directory whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def test_a_demo_that_is_cut_short_leaves_neither_a_process_nor_a_key(short: Path) -> None:
    """A closed terminal: nobody could say any more what is to be ended."""
    program = [sys.executable, "-c", CUT_SHORT, "SIGHUP"]
    done = subprocess.run(program, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(short)})
    assert done.returncode == 128 + signal.SIGHUP, done.stdout + done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    give_up_at = time.monotonic() + PATIENCE_S
    while any(map(is_alive, pids)):  # a daemon lets go of its home a moment before it is gone
        assert time.monotonic() < give_up_at
        time.sleep(0.1)
    assert list(short.iterdir()) == []


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Any]]:
    """The demo, told once, and left running."""
    program = [sys.executable, "-m", "holdfast.cli", "demo", "--keep", "--json"]
    done = subprocess.run(program, capture_output=True, text=True)
    told: dict[str, Any] = json.loads(done.stdout)
    try:
        assert done.returncode == 0, told
        yield told
    finally:
        for line in told["stop"]:
            _typed(line)


@pytest.mark.timeout(600)
def test_every_step_of_the_demo_that_needs_no_spark_holds(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [step for step in demo.STEPS if step.show.__module__ != demo_lake.__name__]
    assert len(steps) == len(demo.STEPS) - 2
    assert demo.show(steps, keep=False, as_json=True) == 0, capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)  # Spark starts twice in it
def test_every_step_of_the_demo_holds(kept: dict[str, Any]) -> None:
    assert [(one["claim"], one["state"]) for one in kept["steps"]] == [(step.claim, "held") for step in demo.STEPS]
    assert kept["steps"][-1]["seen"].startswith("delivery_missing: ")


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_the_demo_leaves_running_answers_the_commands_that_it_names(kept: dict[str, Any]) -> None:
    doctor, *others = reversed(kept["try"])
    for line in others:
        assert _typed(line).returncode == 0, line
    seen = _typed(f"{doctor} --json")
    assert seen.returncode == 4, "the doctor finds the violation that the demo planted, too"
    wrong = [one for one in json.loads(seen.stdout)["findings"] if one["state"] in ("wrong", "away")]
    assert [(one["area"], one["what"].split(":")[0]) for one in wrong] == [("lake", "delivery_missing")]


def _typed(line: str) -> "subprocess.CompletedProcess[str]":
    """What a shell makes of it; our command is this very one, whether it is installed or not."""
    ours = f"{shlex.quote(sys.executable)} -m holdfast.cli"
    return subprocess.run(["bash", "-c", re.sub(r"\S*\bholdfast(?= )", ours, line)], capture_output=True, text=True)
