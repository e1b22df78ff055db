"""A person's own programs: each executable in a folder is run with what agents tell on its standard input.

One event at a time goes to each of them, and no more than a few run at once. A program that takes too long is ended with
everything that it has started; what it writes is kept up to a limit, in one line of an audit log for every run.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import msgspec

from holdfast.hook import json_lines
from holdfast.hook.agent_settings import Programs
from holdfast.protocol.agent_event import AgentEvent
from holdfast.protocol.schedule import SECOND
from holdfast.store.world import Clock

FOLDER_NAME = "agent-handlers"
AUDIT_NAME = "agent-handlers.jsonl"
READ_BYTES = 65_536

_PASSED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")


class Failed(Exception):
    """A program did not end well."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the audit log."""

    at: int
    program: str
    id: str
    kind: str
    code: int | None  # none if it was ended, or could not be started
    milliseconds: int
    output: str
    is_cut: bool = False
    error: str = ""


def found(home: Path) -> list[str]:
    """The programs of a home: executable files that only their owner can change, in the order of their names."""
    folder = home / FOLDER_NAME
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    return [entry.name for entry in entries if not entry.name.startswith(".") and _is_program(Path(entry.path))]


class Runner:
    """Runs the programs of one home."""

    def __init__(self, home: Path, settings: Programs, clock: Clock) -> None:
        self._folder = home / FOLDER_NAME
        self._audit = home / AUDIT_NAME
        self._settings = settings
        self._clock = clock
        self._at_once = asyncio.Semaphore(settings.at_once_max)

    async def run(self, name: str, event: AgentEvent) -> None:
        """Have a program act on an event; raises if it does not end with 0."""
        async with self._at_once:
            began = self._clock()
            code, output, is_cut, error = await self._run(name, msgspec.json.encode(event) + b"\n")
        json_lines.append(
            self._audit,
            Run(
                at=began,
                program=name,
                id=event.id,
                kind=event.kind,
                code=code,
                milliseconds=(self._clock() - began) * 1000 // SECOND,
                output=output.decode(errors="replace"),
                is_cut=is_cut,
                error=error,
            ),
        )
        if code != 0:
            raise Failed(f"{name}: {error or f'it ended with {code}'}")

    async def _run(self, name: str, said: bytes) -> tuple[int | None, bytes, bool, str]:
        try:
            process = await asyncio.create_subprocess_exec(
                str(self._folder / name),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=self._folder,
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                start_new_session=True,  # so that it can be ended with all that it has started
            )
        except OSError as error:
            return None, b"", False, str(error)
        kept = bytearray()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                is_cut = await self._talk(process, said, kept)
                return await process.wait(), bytes(kept), is_cut, ""
        except TimeoutError:
            return None, bytes(kept), False, f"it took longer than {self._settings.timeout_s:g} s"
        finally:
            await _end(process)

    async def _talk(self, process: asyncio.subprocess.Process, said: bytes, kept: bytearray) -> bool:
        """Say it, and listen to the end; whether something was not kept."""
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        assert process.stdout is not None  # noqa: S101 - likewise
        feeding = asyncio.ensure_future(_feed(process.stdin, said))
        is_cut = False
        try:
            while part := await process.stdout.read(READ_BYTES):
                room = self._settings.output_bytes_max - len(kept)
                kept += part[:room]
                is_cut = is_cut or len(part) > room
            await feeding
        finally:
            feeding.cancel()
        return is_cut


async def _feed(stdin: asyncio.StreamWriter, said: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # not everybody wants to know
        stdin.write(said)
        await stdin.drain()
        stdin.close()
        await stdin.wait_closed()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Leave nothing of it running, whether it has ended or not."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    process._transport.close()  # type: ignore[attr-defined]  # nothing else closes pipes that a grandchild holds


def _is_program(path: Path) -> bool:
    """Whether a file is to be run: what others may write could be anybody's program."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return path.is_file() and os.access(path, os.X_OK) and not mode & 0o022
