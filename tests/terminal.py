"""Commands as they are typed, without the start of a process for each, which takes longer than what most of them do."""

import asyncio
import io
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import IO

from holdfast.cli import main

PATIENCE_S = 60.0

OF_THEIR_OWN = {("up",), ("daemon", "run"), ("daemon", "up"), ("relay", "run")}
"""What stays, or leaves somebody behind who stays: a process is what these are about."""


def typed(*words: object, environment: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """What `holdfast WORDS` prints, and how it ends; `environment` instead of ours."""
    said = list(map(str, words))
    if any(tuple(said[: len(own)]) == own for own in OF_THEIR_OWN) or _loop_runs():
        return started(*said, environment=environment)
    with tempfile.TemporaryFile() as shown, tempfile.TemporaryFile() as told:
        with _typed(said, environment), _written(shown) as out, _written(told) as err, _said_to(out, err):
            code = _ended()
        return subprocess.CompletedProcess(["holdfast", *said], code, _text(shown), _text(told))


def started(*words: object, environment: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """The same by a process of its own."""
    command = [sys.executable, "-m", "holdfast.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)


def _loop_runs() -> bool:
    """Whether an event loop runs in this thread: a command has one of its own, and there is only one at a time."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _ended() -> int:
    """Its exit code, as the interpreter would have it."""
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _written(file: IO[bytes]) -> io.TextIOWrapper:
    """A stream into the file by a descriptor of its own, which a command may close or put elsewhere."""
    return open(os.dup(file.fileno()), "w", encoding="utf-8", buffering=1)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


@contextmanager
def _typed(words: Sequence[str], environment: Mapping[str, str] | None) -> Iterator[None]:
    """The interpreter as it is when somebody has typed this, and nothing waits on its standard input."""
    before = sys.argv, sys.stdin, dict(os.environ)
    sys.argv, sys.stdin = ["holdfast", *words], io.TextIOWrapper(io.BytesIO())
    if environment is not None:
        _set(environment)
    try:
        yield
    finally:
        sys.argv, sys.stdin = before[:2]
        _set(before[2])


@contextmanager
def _said_to(out: io.TextIOWrapper, err: io.TextIOWrapper) -> Iterator[None]:
    with redirect_stdout(out), redirect_stderr(err):
        yield


def _set(environment: Mapping[str, str]) -> None:
    """Only what differs: while it changes, another thread may look."""
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
