"""Wrong versions of the programs, each wrong in one way that the contract forbids, and the command that has them found.

    python -m tests.world.mutants                  every mutant with the seed that is kept for it
    python -m tests.world.mutants --search NAME    the first seed, from 0 on, that finds it

A mutant counts as found when a rule over the durable files is broken; a program that stops with an error finds nothing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SEEDS_MAX = 100
SECONDS = 600
TIMEOUT_S = 900
NOT_THE_ORACLE = ("mistake:", "Traceback")


@dataclass(frozen=True)
class Mutant:
    """A patch: in a file, old texts become new ones."""

    name: str
    why: str  # it is wrong
    file: str
    changes: tuple[tuple[str, str], ...]
    seed: int | None = None  # that finds it


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="acknowledge_before_commit",
        why="the relay's yes leaves before its transaction is on disk",
        file="holdfast/store/sqlite.py",
        changes=(("PRAGMA synchronous=EXTRA", "PRAGMA synchronous=NORMAL"),),
    ),
    Mutant(
        name="failed_commit_is_a_yes",
        why="a commit that the disk refused is answered like one that it took",
        file="holdfast/store/writer.py",
        changes=(
            (
                "        try:\n            with self._engine.write() as transaction:\n                answers =",
                "        answers = None\n        try:\n            with self._engine.write() as transaction:\n                answers =",
            ),
            (
                "            return [fault.again() for _ in requests]\n",
                "            return [fault.again() for _ in requests] if answers is None else [(one,) for one in answers]\n",
            ),
        ),
    ),
    Mutant(
        name="acknowledge_before_the_inbox_row",
        why="the relay forgets a message that its recipient has not written down",
        file="holdfast/device/receiver.py",
        changes=(
            (
                "        told = await self._device.do_soon(lambda tx: self._write(tx, log_id, found))\n"
                "        positions = [one.seq for one in queued]\n",
                "        positions = [one.seq for one in queued]\n"
                "        await socket.acknowledge(positions)\n"
                "        told = await self._device.do_soon(lambda tx: self._write(tx, log_id, found))\n",
            ),
            ("        self._told()\n        await socket.acknowledge(positions)\n", "        self._told()\n"),
        ),
    ),
    Mutant(
        name="delete_before_acknowledgement",
        why="a row leaves its queue when it is sent, not when it is acknowledged",
        file="holdfast/relay/stream.py",
        changes=(
            (
                '        await self._tell("MSG", message.seq, about, Raw(message.event or b"null"))\n',
                '        await self._tell("MSG", message.seq, about, Raw(message.event or b"null"))\n'
                "        if not replayed:\n"
                "            await self.acknowledge([message.seq])\n",
            ),
        ),
    ),
    Mutant(
        name="seq_outside_the_transaction",
        why="positions are counted in memory, and a transaction that came to nothing leaves a hole",
        file="holdfast/store/history.py",
        changes=(
            (
                "    seq, chain, at = last.seq, last.chain, max(now, last.at)\n",
                "    seq, chain, at = max(last.seq, _NEXT.get(last.log_id, 0)), last.chain, max(now, last.at)\n",
            ),
            ("    if entries:\n", "    _NEXT[last.log_id] = seq\n    if entries:\n"),
            ("def create(transaction", "_NEXT: dict[bytes, int] = {}\n\n\ndef create(transaction"),
        ),
    ),
    Mutant(
        name="limiter_before_dedupe",
        why="a repetition of what was committed is refused because its sender is too fast",
        file="holdfast/relay/screening.py",
        changes=(
            (
                "            answer = self._repeated(offer, found, seen.head) if found else self._hinder(offer, seen, put_off, changing)\n",
                "            answer = self._too_fast(offer.event, self._clock()) if found else None\n"
                "            answer = answer or (\n"
                "                self._repeated(offer, found, seen.head) if found else self._hinder(offer, seen, put_off, changing)\n"
                "            )\n",
            ),
        ),
    ),
    Mutant(
        name="live_before_backlog",
        why="what comes now is sent before what has waited",
        file="holdfast/relay/queue.sql",
        changes=(("-- name: delivered_before", "-- name: delivered_before"),),
    ),
    Mutant(
        name="requeue_in_two_transactions",
        why="between them both rows are in the outbox, and both are sent",
        file="holdfast/device/requeue.py",
        changes=(
            (
                "    _retire(transaction, item, status.value, now, by)\n",
                "    _later.append((item, status.value, now, by))\n",
            ),
        ),
    ),
    Mutant(
        name="receipt_before_the_inbox_row",
        why="a receipt is promised in a transaction of its own, before the message is kept",
        file="holdfast/device/receiver.py",
        changes=(),
    ),
    Mutant(
        name="reseal_without_stale_key",
        why="a send that got no answer is sealed anew, and its repetition is another event under the same id",
        file="holdfast/device/sending.py",
        changes=(
            (
                "event=None if signal is Signal.KEY_STALE else operation.event",
                "event=None if signal in (Signal.KEY_STALE, Signal.FAULTED, Signal.RESTARTED) else operation.event",
            ),
        ),
    ),
    Mutant(
        name="lane_goes_on_behind_its_head",
        why="what stands behind a message that was put off overtakes it",
        file="holdfast/relay/accept.py",
        changes=(("                held[number] |= offer.lanes\n", "                pass\n"),),
    ),
    Mutant(
        name="in_flight_is_forgotten",
        why="what a dead process had claimed is never offered again",
        file="holdfast/device/sender.py",
        changes=(("        await self._take_back()\n        self.has_begun", "        self.has_begun"),),
    ),
    Mutant(
        name="counter_reset",
        why="a queue's counter starts anew with every acknowledgement, so that a queue takes more than it may",
        file="holdfast/relay/closing.sql",
        changes=(("SET queue_count = queue_count - :count", "SET queue_count = 0 * :count"),),
    ),
    Mutant(
        name="restored_home_keeps_its_epoch",
        why="a restored home names new sends as the lost ones were named",
        file="holdfast/device/operations.py",
        changes=(),
    ),
    Mutant(
        name="fork_is_ignored",
        why="what a restored relay lost is never offered again",
        file="holdfast/device/link.py",
        changes=(
            (
                "        forks = _forks(status)\n        while forks:",
                "        forks = _forks(status)\n        while forks and not forks:",
            ),
        ),
    ),
    Mutant(
        name="pump_skips_a_batch",
        why="a pump that is woken takes the head of the history for what it has sent",
        file="holdfast/relay/stream.py",
        changes=(),
    ),
    Mutant(
        name="full_recipients_are_left_out_in_silence",
        why="a member whose queue is full is missing in the history",
        file="holdfast/relay/accept.py",
        changes=(),
    ),
    Mutant(
        name="topic_text_in_the_clear",
        why="the relay gets the text of what is posted to a topic",
        file="holdfast/device/sealer.py",
        changes=(),
    ),
)
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--search", action="append", default=[], help="find the first seed for this mutant")
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args(arguments)
    mutants = [BY_NAME[name] for name in chosen.search] or list(MUTANTS)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        results = list(pool.map(lambda mutant: _judge(mutant, search=bool(chosen.search)), mutants))
    unfound = results.count(False)
    print(f"{len(results)} mutants, {unfound} not found")
    return 1 if unfound else 0


def _judge(mutant: Mutant, *, search: bool) -> bool:
    with tempfile.TemporaryDirectory(prefix="holdfast-mutant-") as place:
        _write(mutant, Path(place))
        seeds = range(SEEDS_MAX) if search or mutant.seed is None else [mutant.seed]
        for seed in seeds:
            found = run(Path(place), seed)
            if found:
                print(f"{mutant.name}: found by seed {seed}: {found[0]}", flush=True)
                return True
    print(f"{mutant.name}: NOT FOUND by {len(seeds)} seeds", flush=True)
    return False


def _write(mutant: Mutant, place: Path) -> None:
    """The sources with one mistake in them."""
    shutil.copytree(SOURCE, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    path = place / mutant.file
    text = path.read_text()
    for old, new in mutant.changes:
        if text.count(old) != 1:
            raise SystemExit(f"{mutant.name}: the text to change is {text.count(old)} times in {mutant.file}: {old!r}")
        text = text.replace(old, new)
    path.write_text(text)


def run(source: Path, seed: int) -> list[str]:
    """What the rules find in a world of these sources, with assertions off."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{source}:{ROOT}",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-O", "-m", "tests.world", "--seed", str(seed), "--seconds", str(SECONDS)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    lines = [line.strip().removeprefix("✗ ") for line in done.stdout.splitlines() if line.strip().startswith("✗")]
    found = [line for line in lines if not line.startswith(NOT_THE_ORACLE)]
    return sorted(found, key=lambda line: not line[0].isdigit())  # what breaks the contract says most


if __name__ == "__main__":
    sys.exit(main())
