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
import structlog

from holdfast.hook import json_lines
from holdfast.hook.agent_settings import Programs
from holdfast.protocol.agent_event import AgentEvent
from holdfast.protocol.schedule import SECOND
from holdfast.store import faults
from holdfast.store.world import Clock

FOLDER_NAME = "agent-handlers"
AUDIT_NAME = "agent-handlers.jsonl"
LAST_WORDS_S = 1.0  # for what a program wrote before it ended
READ_BYTES = 65_536  # of what a program writes, at once

_PASSED_ON = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")

_log = structlog.get_logger(__name__)


class FolderUnreadable(faults.Fault):
    what = "this folder of programs cannot be read"
    remedy = "Make it a directory that you can read."


class Failed(Exception):
    """A program did not end with 0."""


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
    except OSError as error:
        raise FolderUnreadable(str(folder), str(error)) from error
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
            try:
                code, kept, error = await self._run(name, msgspec.json.encode(event) + b"\n")
            except asyncio.CancelledError:
                self._note(name, event, began, error="it was ended with the daemon")
                raise
        self._note(name, event, began, code, kept, error)
        if code != 0:
            raise Failed(f"{name}: {error or f'it ended with {code}'}")

    def _note(
        self,
        name: str,
        event: AgentEvent,
        began: int,
        code: int | None = None,
        kept: "Kept | None" = None,
        error: str = "",
    ) -> None:
        """Write down a run. Whatever the audit log has against that, the program has acted, and the daemon may have to end."""
        run = Run(
            at=began,
            program=name,
            id=event.id,
            kind=event.kind,
            code=code,
            milliseconds=(self._clock() - began) * 1000 // SECOND,
            output="" if kept is None else kept.content.decode(errors="replace"),
            is_cut=kept is not None and kept.is_cut,
            error=error,
        )
        try:
            json_lines.append(self._audit, run)
        except OSError as trouble:
            detail = f"{trouble}; {error or f'it ended with {code}'}"
            _log.error("a run of a program is not written down", program=name, id=event.id, detail=detail)

    async def _run(self, name: str, said: bytes) -> "tuple[int | None, Kept, str]":
        kept = Kept(self._settings.output_bytes_max)
        # A pipe of our own: with one of the process's, its end would be known only when nobody holds the other end any more.
        ours, theirs = os.pipe()
        kept.listen(ours)
        try:
            process = await self._started(name, theirs)
        except OSError as error:
            kept.close()
            return None, kept, str(error)
        except BaseException:
            kept.close()
            raise
        finally:
            os.close(theirs)
        try:
            return await self._wait_for(process, said, kept)
        finally:
            try:
                await _end(process)
                await kept.wait()
            finally:
                kept.close()

    async def _started(self, name: str, output: int) -> asyncio.subprocess.Process:
        """Start a program; if we are cancelled meanwhile, the program is ended first."""
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                str(self._folder / name),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                start_new_session=True,  # so that it can be ended with all that it has started
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                await _end(await starting)
            raise

    async def _wait_for(
        self, process: asyncio.subprocess.Process, said: bytes, kept: "Kept"
    ) -> "tuple[int | None, Kept, str]":
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        feeding = asyncio.ensure_future(_feed(process.stdin, said))
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await process.wait(), kept, ""
        except TimeoutError:
            return None, kept, f"it took longer than {self._settings.timeout_s:g} s"
        finally:
            feeding.cancel()


class Kept:
    """The output of a program, up to a limit; the rest is read and dropped, so that the program never blocks.

    It reads from its descriptor itself. The event loop's own way of reading pipes closes it twice, and what another thread had
    opened between the two, a journal of a database say, is closed in its place.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._ended = asyncio.Event()
        self._descriptor: int | None = None
        self.content = bytearray()
        self.is_cut = False

    def listen(self, descriptor: int) -> None:
        """Read whatever comes, until `close`."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._read, descriptor)

    async def wait(self) -> None:
        """Wait for the rest of the output, not for ever: a process that got away may hold the pipe open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._ended.wait()

    def close(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        room = self._bytes_max - len(self.content)
        self.content += data[:room]
        self.is_cut = self.is_cut or len(data) > room
        if not data:
            asyncio.get_running_loop().remove_reader(descriptor)
            self._ended.set()


async def _feed(stdin: asyncio.StreamWriter, said: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # not everybody wants to know
        stdin.write(said)
        await stdin.drain()
        stdin.close()
        await stdin.wait_closed()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a program's process group, also after the program itself has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _is_program(path: Path) -> bool:
    """Whether a file is an executable that only its owner can change."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return path.is_file() and os.access(path, os.X_OK) and not mode & 0o022
