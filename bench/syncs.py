"""What a server really synced: counted from outside, by strace, while one client asks for one thing after another.

Whoever waits for the disk then syncs at least once for each answer; whoever does not, shows it here.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ATTACH_S = 1.5  # for strace to have hold of every thread
_CALLS = 3  # which column of the table has how often
_SYNCS = ("fdatasync", "fsync", "sync_file_range", "msync")


def syncs(pid: int, ask: Callable[[], int]) -> float | None:
    """Syncs for each answer that `ask` counts; None where nobody can look."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    with tempfile.NamedTemporaryFile() as found:
        command = [strace, "-f", "-c", "-o", found.name, "-e", "trace=fdatasync,fsync,sync_file_range,msync"]
        watching = subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.PIPE)
        assert watching.stderr is not None
        watching.stderr.readline()  # that it has hold of the first thread; the others follow
        time.sleep(ATTACH_S)
        answered = ask()
        watching.terminate()
        watching.communicate()
        calls = _counted(Path(found.name).read_text())
    return round(calls / answered, 2)


def _counted(table: str) -> int:
    rows = [line.split() for line in table.splitlines()]
    return sum(int(row[_CALLS]) for row in rows if row and row[-1] in _SYNCS)


def syncs_of_self(work: Callable[[], "list[None]"]) -> float | None:
    """The same of work that this very process does."""
    return syncs(os.getpid(), lambda: len(work()))


def syncs_of_command(command: list[str], given: bytes) -> float | None:
    """Syncs of a program from its start to its end."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    with tempfile.NamedTemporaryFile() as found:
        watched = [strace, "-f", "-c", "-o", found.name, "-e", "trace=fdatasync,fsync", *command]
        subprocess.run(watched, input=given, check=True, stdout=subprocess.DEVNULL)
        return float(_counted(Path(found.name).read_text()))
