"""What the README shows is what happens: its Python runs, its commands print what it says they print."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHANGING = [
    (re.compile(r"http://127\.0\.0\.1:\d+"), "URL"),
    (re.compile(r"holdfast1\.[\w-]+…?"), "INVITE"),
    (re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"), "ULID"),
    (re.compile(r"npub1\w+"), "NPUB"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r'"(enqueued_at|expires_at)": \d+'), r'"\1": TIME'),
]


def _comparable(text: str) -> list[str]:
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return [line.rstrip() for line in text.strip().splitlines()]


def _run(program: list[str], folder: Path) -> str:
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_tour_prints_what_the_readme_says(tmp_path: Path) -> None:
    blocks = [(kind, body) for kind, body in BLOCK.findall(README)]
    first, second = (body for kind, body in blocks if kind == "python")
    session = next(body for kind, body in blocks if kind == "console")
    assert _run([sys.executable, "-c", first], tmp_path) == ""
    commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE)
    assert len(commands) == 5
    for command, expected in commands:
        name, *arguments = shlex.split(command)
        assert name == "holdfast"
        printed = _run([sys.executable, "-m", "holdfast.cli", *arguments], tmp_path)
        assert _comparable(printed) == _comparable(expected), command
    names = "note, todo = bytes.fromhex('5a' * 32), bytes.fromhex('70' * 32)\n"
    expected = blocks[[body for _, body in blocks].index(second) + 1][1]
    assert _run([sys.executable, "-c", names + second], tmp_path) == expected


def test_the_relay_and_two_homes_do_what_the_readme_says(tmp_path: Path) -> None:
    session = [body for kind, body in BLOCK.findall(README) if kind == "console"][1]
    (_, first_line), *commands = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE)
    relay = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "relay", "run", "--data", "relay", "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert relay.stdout is not None
        said = relay.stdout.readline()
        assert _comparable(said) == _comparable(first_line)
        _run_session(commands, json.loads(said)["url"], tmp_path)
    finally:
        relay.terminate()
        relay.communicate()
    assert len(commands) == 10


def _run_session(commands: list[tuple[str, str]], url: str, folder: Path) -> None:
    environment, invite = dict(os.environ), ""
    for command, expected in commands:
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            environment[name] = value
            continue
        words = shlex.split(command)
        given = environment | dict(word.split("=") for word in words if re.match(r"[A-Z_]+=", word))
        arguments = words[words.index("holdfast") + 1 :]
        arguments = [invite if word.startswith("holdfast1.") else word for word in arguments]
        arguments = [re.sub(r"http://127\.0\.0\.1:\d+", url, word) for word in arguments]
        program = [sys.executable, "-m", "holdfast.cli", *arguments]
        done = subprocess.run(program, cwd=folder, env=given, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert _comparable(done.stdout) == _comparable(expected), command
        if "invite" in words:
            invite = json.loads(done.stdout)["invite"]


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} <= set(re.findall(r"\bmake ([a-z]+)", README)) <= targets


def test_every_file_that_a_document_links_to_exists() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "tests" / "README.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
