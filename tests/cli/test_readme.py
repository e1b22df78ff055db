"""What the README and the pages beside it show is what happens: their Python runs, their commands print what they say."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cli.demo import STEPS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
OPERATION_LOG = (ROOT / "docs" / "operation-log.md").read_text()

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
CHANGING = [
    (re.compile(r"http://127\.0\.0\.1:\d+"), "URL"),
    (re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"), "ULID"),
    (re.compile(r"npub1\w+"), "NPUB"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r'"(enqueued_at|expires_at)": \d+'), r'"\1": TIME'),
    (re.compile(r"/\S*/(alice|bob)\b"), r"HOME/\1"),
    (re.compile(r"\b\d+ entries\b"), "N entries"),
    (re.compile(r"\(\d+\.\d s\)"), "(SECONDS)"),
    (re.compile(r"version [0-9a-f]{12}"), "version VERSION"),
    (re.compile(r"\b\d+ ms\b"), "MILLISECONDS"),
    (re.compile(r"/\S*/\.claude/"), "USER/.claude/"),
    (re.compile(r"\bprocess \d+"), "process PID"),
    (re.compile(r"[\d,]+ MB are free"), "MB are free"),
]


PATIENCE_S = 120.0  # a command takes seconds on a slow machine

TRAVELLING = ("inbox", "trace greeting", "get shopping", "init --from alice", "agents list")
"""What shows something of another home or of the daemon's, which may still be on its way."""


def _comparable(text: str) -> list[str]:
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def _run(program: list[str], folder: Path) -> str:
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_operation_log_prints_what_its_page_says(tmp_path: Path) -> None:
    blocks = [(kind, body) for kind, body in BLOCK.findall(OPERATION_LOG)]
    first, second = (body for kind, body in blocks if kind == "python")
    (session,) = [body for kind, body in blocks if kind == "console"]
    assert _run([sys.executable, "-c", first], tmp_path) == ""
    commands = COMMAND.findall(session)
    assert len(commands) == 5
    for command, expected in commands:
        name, *arguments = shlex.split(command)
        assert name == "holdfast"
        printed = _run([sys.executable, "-m", "holdfast.cli", *arguments], tmp_path)
        assert _comparable(printed) == _comparable(expected), command
    names = "note, todo = bytes.fromhex('5a' * 32), bytes.fromhex('70' * 32)\n"
    expected = blocks[[body for _, body in blocks].index(second) + 1][1]
    assert _run([sys.executable, "-c", names + second], tmp_path) == expected


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_relay_and_two_homes_do_what_the_readme_says(tmp_path: Path) -> None:
    blocks = BLOCK.findall(README)
    first, again, *others = [body for kind, body in blocks if kind == "console"]
    (_, first_line), *commands = COMMAND.findall(first)
    with _relay(tmp_path) as said:
        assert _comparable(said) == _comparable(first_line)
        session = Session(json.loads(said)["url"], tmp_path)
        try:
            session.run(commands)
            session.run(COMMAND.findall(again))
            (python,) = [body for kind, body in blocks if kind == "python"]
            assert _run([sys.executable, "-c", python], tmp_path) == "hello bob\n"
            for part in others:
                session.run(COMMAND.findall(part))
        finally:
            session.down()
    counts = [len(COMMAND.findall(part)) for part in (first, again, *others)]
    assert counts == [9, 1, 7, 3, 3, 5, 1, 2]
    lines = [line for part in (first, again, *others) for line in part.splitlines() if line.startswith("$ ")]
    assert len(lines) == sum(counts), "no command is hidden from this test"


@contextmanager
def _relay(folder: Path) -> Iterator[str]:
    """A relay that runs; yields its first line."""
    program = [sys.executable, "-m", "holdfast.cli", "relay", "run", "--data", "relay", "--port", "0"]
    relay = subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert relay.stdout is not None
        yield relay.stdout.readline()
    finally:
        relay.terminate()
        relay.communicate()


def _holdfast_in(folder: Path) -> Path:
    """A directory for the path in which our command is this very one."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m holdfast.cli "$@"\n')
    program.chmod(0o755)
    return program.parent


class Session:
    """Somebody who types what the README shows, and waits where a person would."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        (folder / "user").mkdir()
        path = f"{_holdfast_in(folder)}:{os.environ['PATH']}"
        self._environment = {**os.environ, "HOME": str(folder / "user"), "PATH": path}  # whose agents are told of

    def run(self, commands: list[tuple[str, str]]) -> None:
        for command, expected in commands:
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                self._environment[name] = value
            else:
                self._type(command, expected)

    def down(self) -> None:
        """Whatever happened, no daemon stays."""
        for home in ("./alice", "./bob"):
            program = [sys.executable, "-m", "holdfast.cli", "daemon", "down"]
            environment = {**self._environment, "HOLDFAST_HOME": home}
            subprocess.run(program, cwd=self._folder, env=environment, capture_output=True, check=False)

    def _type(self, command: str, expected: str) -> None:
        """A command until it prints what it should: things travel, and nobody types as fast as a test."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            printed = self._say(command)
            if _comparable(printed) == _comparable(expected):
                return
            assert time.monotonic() < give_up_at, f"{command}\n{printed}"
            assert command.endswith(TRAVELLING), f"{command}\n{printed}"
            time.sleep(0.2)

    def _say(self, command: str) -> str:
        """What a shell makes of the line as it stands, but for the address, which is another each time."""
        line = re.sub(r"http://127\.0\.0\.1:\d+", self._url, command)
        done = subprocess.run(
            ["bash", "-c", line], cwd=self._folder, env=self._environment, capture_output=True, text=True
        )
        assert done.returncode == 0 or command.endswith(TRAVELLING), f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= set(re.findall(r"\bmake ([a-z]+)", README)) <= targets


def test_every_file_that_a_document_links_to_exists() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "tests" / "README.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_claims_of_the_demo_are_those_that_it_tries() -> None:
    (block,) = [body for kind, body in BLOCK.findall(README) if kind == "text"]
    assert block.splitlines() == [f"✓ {step.claim}" for step in STEPS]
