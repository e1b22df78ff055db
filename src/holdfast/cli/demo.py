"""`holdfast demo`: the story so far, told by real processes that really die."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from holdfast.cli.check import inspect
from holdfast.cli.log import outbox as print_outbox
from holdfast.device.operation_log import OperationLog
from holdfast.device.operations import SequenceTaken

OBJECTS = {name: name.encode().ljust(32, b"\x00") for name in ("clipboard", "shopping-list", "diary")}

APPENDS = 300
"""How many appends the writer reports before it is killed."""

console = Console(highlight=False)


def demo() -> None:
    """Watch it survive: offline appends, kill -9, replay in order, a relay that dies and two homes that do not mind."""
    home = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    path = home / "operations.db"
    console.print(f"[bold]Holdfast[/] keeps everything a device sends in one file: [cyan]{path}[/]\n")
    reported = _append_until_killed(path)
    _reopen(path, reported)
    pushed = _replay_until_killed(path)
    _replay_the_rest(path, pushed)
    _object_history(path)
    _repeat(path)
    _restore(path, home / "backup.db")
    _prove(path)
    _relay_and_two_homes(home)
    console.print("\nIt is all still there to look at:")
    for command in (
        f"log list {path}",
        f"log outbox {path}",
        f"log history {path} 6469",
        f"check {home}/relay/relay.db",
    ):
        console.print(f"  [cyan].venv/bin/holdfast {command}[/]", soft_wrap=True)


def _append_until_killed(path: Path) -> list[int]:
    _chapter(
        1,
        "Offline, and then dead",
        "Another process appends as fast as it can, with no relay in reach. We kill -9 it.",
    )
    reported = []
    with _process("append", path) as lines:
        for line in lines:
            reported.append(int(line))
            if len(reported) == APPENDS:
                break
    _fact(f"{len(reported)} appends returned before the process died")
    return reported


def _reopen(path: Path, reported: list[int]) -> None:
    with OperationLog(path) as log:
        waiting = [entry.sequence for entry in log.outbox()]
        missing = set(reported) - set(waiting)
        _fact(f"{len(waiting)} are in the file ({len(waiting) - len(reported)} died between the disk and their answer)")
        _verdict(not missing, "every append that returned is there", f"lost: {sorted(missing)}")
        _verdict(waiting == sorted(waiting) == list(range(len(waiting))), "once, and in order", f"found: {waiting}")
        _fact(f"the next sequence is {log.next_sequence()}: it goes on, it never goes back")


def _replay_until_killed(path: Path) -> list[int]:
    _chapter(
        2,
        "Connected again",
        "A process replays the outbox in order and marks what got through. We kill -9 that one, too.",
    )
    pushed = []
    with _process("replay", path) as lines:
        for line in lines:
            pushed.append(int(line))
            if len(pushed) == APPENDS // 2:
                break
    _fact(f"{len(pushed)} were pushed when it died")
    return pushed


def _replay_the_rest(path: Path, pushed: list[int]) -> None:
    with OperationLog(path) as log:
        rest = log.outbox()
        again = [entry.sequence for entry in rest if entry.sequence in set(pushed)]
        for entry in rest:
            log.mark_delivered(entry.object_id, entry.sequence)
        received = pushed + [entry.sequence for entry in rest]
        _fact(f"{len(rest)} were left in the outbox; {len(again)} of them had been pushed but not yet marked")
        _verdict(
            set(received) == set(range(log.next_sequence())),
            "the other end got every one",
            "some never arrived",
        )
        _verdict(log.outbox() == [], "the outbox is empty", "the outbox is not empty")


def _object_history(path: Path) -> None:
    _chapter(
        3,
        "One object's history",
        "The counter is the device's, so an object's sequences have gaps. That is intended.",
    )
    with OperationLog(path) as log:
        diary = log.entries_from(OBJECTS["diary"], 0)
        _fact(f"the diary has {len(diary)} entries: sequences {', '.join(str(e.sequence) for e in diary[:6])}, …")
        for entry in diary[:2]:
            _fact(f"{entry.sequence}: {(entry.blob or b'').decode()!r}, delivered: {entry.delivered}")


def _repeat(path: Path) -> None:
    _chapter(4, "Said twice", "A repeated append is recognised, and a sequence is never given to two objects.")
    with OperationLog(path) as log:
        first = log.entries_from(OBJECTS["diary"], 0)[0]
        log.append(first.object_id, first.sequence, b"something else")
        kept = log.entries_from(first.object_id, first.sequence)[0]
        _verdict(kept.blob == first.blob, "the same append again: the first blob stays", "the blob was replaced")
        try:
            log.append(OBJECTS["clipboard"], first.sequence, b"mine now")
            _verdict(False, "", "a taken sequence was given away")
        except SequenceTaken as taken:
            _verdict(True, f"refused: {taken}", "")


def _restore(path: Path, backup: Path) -> None:
    _chapter(
        5,
        "Restored from a backup",
        "A copy may lag behind what was sent, so it becomes a new sender: it gets a new epoch.",
    )
    with OperationLog(path) as log:
        log.backup(backup)
        with OperationLog(backup) as copy:
            _fact(f"epoch of the log    {log.epoch.hex()}")
            _fact(f"epoch of the copy   {copy.epoch.hex()}")
            _verdict(copy.epoch != log.epoch, "never the same name for two sends", "the epoch was copied")


def _prove(path: Path) -> None:
    _chapter(
        6,
        "Proof",
        "Every change above is also an entry in a hash-chained history. `holdfast check` recomputes it.",
    )
    _, findings = inspect(path)
    _verdict(not findings, "every rule holds, and every entry is in its chain", f"{findings}")
    with OperationLog(path) as log:
        log.append_next(OBJECTS["diary"], b"Dear diary, nothing was lost.")
        console.print("  One more entry, for the outbox to have something to show:\n")
    print_outbox(path)


def _relay_and_two_homes(home: Path) -> None:
    _chapter(
        7, "A relay and two homes", "Alice makes a mesh, the relay is killed with kill -9, and Bob joins all the same."
    )
    with _relay(home) as url:
        _command(home / "alice", "mesh", "create", "friends", "--relay", url, "--as", "alice")
        invite = json.loads(_command(home / "alice", "mesh", "invite", "--json"))["invite"]
    _fact("the relay said yes to both, and was killed")
    port = url.rpartition(":")[2]
    with _relay(home, port):
        _command(home / "bob", "mesh", "join", invite, "--as", "bob")
        found = json.loads(_command(home / "alice", "member", "list", "--json"))
    _verdict([one["name"] for one in found] == ["alice", "bob"], "nothing was forgotten", f"found: {found}")
    _, findings = inspect(home / "relay" / "relay.db")
    _verdict(not findings, "every rule of the relay's database holds, and every entry is in its chain", f"{findings}")


@contextmanager
def _relay(home: Path, port: str = "0") -> Iterator[str]:
    """A relay, until the block ends: then it is killed."""
    program = [sys.executable, "-m", "holdfast.cli", "relay", "run", "--data", str(home / "relay"), "--port", port]
    relay = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # noqa: S603 - ours
    try:
        assert relay.stdout is not None  # noqa: S101 - it is a pipe
        yield str(json.loads(relay.stdout.readline())["url"])
    finally:
        relay.kill()
        relay.communicate()


def _command(home: Path, *words: str) -> str:
    """What a command says in a home."""
    program = [sys.executable, "-m", "holdfast.cli", *words]
    environment = {**os.environ, "HOLDFAST_HOME": str(home)}
    return subprocess.run(program, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 - ours


@contextmanager
def _process(role: str, path: Path) -> Iterator[Iterator[str]]:
    """A process of ours that prints a sequence for each thing it did, until the block ends: then it is killed."""
    child = subprocess.Popen(  # noqa: S603 - this very module
        [sys.executable, "-m", "holdfast.cli.demo", role, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None  # noqa: S101 - it is a pipe
        yield iter(child.stdout)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


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


def _chapter(number: int, title: str, text: str) -> None:
    console.print(f"\n[bold]{number}. {title}[/]  {text}")


def _fact(text: str) -> None:
    console.print(f"  · {text}", markup=False)


def _verdict(holds: bool, good: str, bad: str) -> None:
    if not holds:
        console.print(f"  ✗ {bad}", style="bold red", markup=False)
        raise SystemExit(1)
    console.print(f"  ✓ {good}", style="green", markup=False)


if __name__ == "__main__":
    {"append": _append, "replay": _replay}[sys.argv[1]](Path(sys.argv[2]))
