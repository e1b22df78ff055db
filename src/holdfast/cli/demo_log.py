"""The demo's beginning: an operation log whose writer and whose reader are killed in the middle of their work."""

import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

from holdfast.cli.demo_world import NotHeld, World, hold
from holdfast.device.operation_log import OperationLog
from holdfast.device.operations import SequenceTaken

OBJECTS = {name: name.encode().ljust(32, b"\x00") for name in ("clipboard", "shopping-list", "diary")}

LOG = "operations.db"
APPENDS = 300
"""How many appends the writer reports before it is killed."""


def survive(world: World) -> str:
    """A process appends as fast as it can, and is killed."""
    path = world.folder / LOG
    reported = _killed_after("append", path, APPENDS)
    with OperationLog(path) as log:
        waiting = [entry.sequence for entry in log.outbox()]
    lost = sorted(set(reported) - set(waiting))
    hold(not lost, f"appends that returned are lost: {lost}")
    hold(waiting == list(range(len(waiting))), f"the log has {waiting}")
    return f"{len(reported)} appends had returned; {len(waiting)} are in the file, in order"


def replay(world: World) -> str:
    """A process that replays the outbox is killed, too, and another one goes on; nothing is pushed into another's place."""
    path = world.folder / LOG
    pushed = _killed_after("replay", path, APPENDS // 2)
    with OperationLog(path) as log:
        rest = log.outbox()
        for entry in rest:
            log.mark_delivered(entry.object_id, entry.sequence)
        missing = set(range(log.next_sequence())) - {*pushed, *(entry.sequence for entry in rest)}
        hold(not missing, f"never replayed: {sorted(missing)}")
        first = log.entries_from(OBJECTS["diary"], 0)[0]
        try:
            log.append(OBJECTS["clipboard"], first.sequence, b"mine now")
        except SequenceTaken:
            return f"{len(pushed)} before the kill, {len(rest)} after it; a sequence that is taken is refused"
    raise NotHeld(f"sequence {first.sequence} was given to two objects")


def _killed_after(role: str, path: Path, count: int) -> list[int]:
    """What a process of ours that prints a sequence for each thing it did reported until it was killed: so many, or a few more."""
    command = [sys.executable, "-m", "holdfast.cli.demo_log", role, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603 - this very module
        assert child.stdout is not None  # noqa: S101 - it is a pipe
        try:
            reported = [int(line) for line in islice(child.stdout, count)]
        finally:
            child.kill()
        reported += map(int, child.stdout)  # what it said before it died counts, though nobody had read it yet
    hold(len(reported) >= count, f"the process ended by itself after {len(reported)} of {count}")
    return reported


def _append(path: Path) -> None:
    with OperationLog(path) as log:
        for number in range(1_000_000):
            name = random.choice(list(OBJECTS))  # noqa: S311 - any object will do
            print(log.append_next(OBJECTS[name], f"{name} entry {number}".encode()), flush=True)


def _replay(path: Path) -> None:
    with OperationLog(path) as log:
        for entry in log.outbox():
            print(entry.sequence, flush=True)  # the push; the reader of this pipe stands for the relay
            log.mark_delivered(entry.object_id, entry.sequence)


if __name__ == "__main__":
    {"append": _append, "replay": _replay}[sys.argv[1]](Path(sys.argv[2]))
