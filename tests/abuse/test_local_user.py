"""Another user of the same machine: what lies in a home and in a relay's directory is closed to them, and so are its doors."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.abuse.scene import Scene

NOBODY = 65_534  # the user who owns nothing

TRY = """
import json, os, socket, sys
user, paths, found = *json.load(sys.stdin), {}
os.setgroups([])
os.setgid(user)
os.setuid(user)  # only now: the interpreter itself may lie where nobody else can read
for path in paths:
    try:
        if path.endswith(".sock"):
            socket.socket(socket.AF_UNIX).connect(path)
        elif os.path.isdir(path):
            os.listdir(path)
        else:
            os.close(os.open(path, os.O_RDONLY))
        found[path] = "open"
    except OSError as error:
        found[path] = type(error).__name__
print(json.dumps(found))
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def everything_in(*directories: Path) -> list[Path]:
    return [path for directory in directories for path in (directory, *sorted(directory.rglob("*")))]


def tried_by_another_user(paths: list[Path]) -> dict[str, str]:
    """What somebody else can open of these."""
    asked = json.dumps([NOBODY, [str(path) for path in paths]])
    program = [sys.executable, "-I", "-S", "-c", TRY]
    done = subprocess.run(program, input=asked, capture_output=True, text=True, check=True)
    tried: dict[str, str] = json.loads(done.stdout)
    return tried


@contextmanager
def entered_by_all(*directories: Path) -> Iterator[None]:
    """Somebody has opened the directories, and what lies in them has to stand alone."""
    before = {path: path.stat().st_mode for path in directories}
    for path in directories:
        path.chmod(0o755)
    try:
        yield
    finally:
        for path, mode in before.items():
            path.chmod(stat.S_IMODE(mode))


@pytest.fixture(scope="module")
def places(place: Scene) -> list[Path]:
    return [place.home.home, place.relay.data]


def test_nobody_else_may_open_what_lies_in_a_home_or_beside_a_relay(places: list[Path]) -> None:
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in everything_in(*places)}
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
    assert {"member.key", "local-token", "device.db", "daemon.sock", "operator.key", "relay.key", "relay.db"} <= set(
        modes
    )


@as_root
def test_another_user_gets_nothing_of_it(places: list[Path]) -> None:
    tried = tried_by_another_user(everything_in(*places))
    assert set(tried.values()) == {"PermissionError"}


@as_root
def test_another_user_gets_nothing_of_it_though_the_directories_are_open(places: list[Path]) -> None:
    inside = [path for path in everything_in(*places) if not path.is_dir()]
    with entered_by_all(*places):
        tried = tried_by_another_user(inside)
    assert {path: what for path, what in tried.items() if what != "PermissionError"} == {}


@as_root
def test_somebody_who_looks_for_open_doors_would_find_one(places: list[Path], place: Scene) -> None:
    """The test above means something only if it sees what is open."""
    shown = place.directory / "shown.txt"
    shown.write_text("x")
    shown.chmod(0o644)
    assert tried_by_another_user([shown]) == {str(shown): "open"}


def test_a_daemon_tells_the_process_list_nothing(place: Scene) -> None:
    """Everybody on a machine sees how a program was started."""
    secrets: list[Any] = [place.token, (place.home.home / "member.key").read_text().strip()]
    secrets += [(place.relay.data / name).read_text().strip() for name in ("operator.key", "relay.key")]
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes()
        except OSError:
            continue
        assert not any(secret.encode() in words for secret in secrets), command
