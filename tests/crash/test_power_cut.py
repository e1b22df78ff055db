"""Power cuts at every kind of moment: what a call said was written is there afterwards, and the file is sound."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from holdfast import OperationLog
from holdfast.device.database import SCHEMA
from holdfast.store.check import check
from holdfast.store.sqlite import SqliteEngine
from tests.disk import Disk

CUTS = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "50")) * 5
# The same cuts every day, others each time at length; HOLDFAST_CRASH_SEED repeats those of which a finding told.
FIRST = int(os.environ.get("HOLDFAST_CRASH_SEED", "0")) or (
    random.SystemRandom().randrange(2**32) if "HOLDFAST_CRASH_CYCLES" in os.environ else 0
)
OPERATIONS = 60
OBJECTS = [bytes([number]) * 32 for number in range(3)]


@contextmanager
def named(seed: int) -> Iterator[None]:
    """Whatever goes wrong says how it is repeated."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"HOLDFAST_CRASH_SEED={seed}")
        raise


class SmallJournal(SqliteEngine):
    """Checkpoints every few commits, so that cuts fall into checkpoints too."""

    def prepare(self) -> None:
        super().prepare()
        self._execute(self._writer, "PRAGMA wal_autocheckpoint=25")


class LazilySynced(SmallJournal):
    """The setting that most programs use with a write-ahead log, and that is not enough."""

    def prepare(self) -> None:
        super().prepare()
        self._execute(self._writer, "PRAGMA synchronous=NORMAL")


@dataclass
class Said:
    """What the log told its caller: the only thing that a power cut must not make untrue."""

    blobs: dict[int, bytes] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    epoch: bytes = b""


class PowerCut(Exception):
    """The machine is off; whatever was under way, nobody got an answer."""


def _work(log: OperationLog, said: Said, luck: random.Random, disk: Disk) -> None:
    for _ in range(OPERATIONS):
        sequence = luck.randrange(max(said.blobs, default=0) + 1)
        if luck.random() < 0.3 and sequence in said.blobs:
            log.mark_delivered(OBJECTS[sequence % 3], sequence)
            _still_on(disk)
            said.delivered.add(sequence)
        elif luck.random() < 0.05:
            log.prune_blobs(sequence)
        else:
            blob = luck.randbytes(luck.choice((0, 10, 600, 5000)))
            taken = log.append_next(OBJECTS[log.next_sequence() % 3], blob)
            _still_on(disk)
            assert taken not in said.blobs
            said.blobs[taken] = blob


def _still_on(disk: Disk) -> None:
    if disk.off:
        raise PowerCut


def _live_until_the_cut(
    disk: Disk, said: Said, luck: random.Random, engine: Callable[..., SqliteEngine], *, torn: bool
) -> None:
    last_step = luck.randrange(1, 400)

    def trouble(step: int, what: str) -> None:
        if step == last_step:
            disk.cut(luck if torn else None)

    disk.trouble = trouble
    with suppress(PowerCut):
        log = OperationLog("log", open_engine=partial(engine, vfs=disk.boot(), exclusive=True))
        _still_on(disk)
        _work(log, said, luck, disk)
    if not disk.off:
        disk.cut(luck if torn else None)


def _lost(disk: Disk, said: Said) -> list[str]:
    """Open the log after the cut and list whatever it no longer knows; the file itself must be sound in any case."""
    disk.trouble = lambda step, what: None
    with OperationLog("log", open_engine=partial(SqliteEngine, vfs=disk.boot(), exclusive=True)) as log:
        assert list(check(log._engine, SCHEMA)) == []
        found = {entry.sequence: entry for object_id in OBJECTS for entry in log.entries_from(object_id, 0)}
        assert sorted(found) == list(range(len(found))), "a hole, or an entry out of nowhere"
        assert len(found) <= len(said.blobs) + 1, "more than the one operation under way came through unannounced"
        lost = [f"append {sequence}" for sequence in said.blobs if sequence not in found]
        lost += [f"delivery {s}" for s in said.delivered if s not in found or not found[s].delivered]
        kept = [entry for sequence, entry in found.items() if sequence in said.blobs and entry.blob is not None]
        assert all(entry.blob == said.blobs[entry.sequence] for entry in kept)
        if said.epoch and log.epoch != said.epoch:
            lost.append("epoch")
        said.epoch = log.epoch
        said.blobs = {sequence: entry.blob or said.blobs.get(sequence, b"") for sequence, entry in found.items()}
        said.delivered = {sequence for sequence, entry in found.items() if entry.delivered}
        return lost


def _rounds(engine: Callable[..., SqliteEngine], cuts: int, *, torn: bool, first: int = FIRST) -> list[str]:
    lost: list[str] = []
    for seed in range(first, first + cuts // 5):
        luck = random.Random(seed)
        disk, said = Disk(), Said()
        with named(seed):
            for cut in range(5):
                _live_until_the_cut(disk, said, luck, engine, torn=torn)
                lost += [f"seed {seed}, cut {cut}: {what}" for what in _lost(disk, said)]
    return lost


@pytest.mark.parametrize("torn", [False, True], ids=["unsynced writes are gone", "any sectors got through"])
def test_a_power_cut_loses_nothing_that_was_acknowledged(
    torn: bool, record_property: Callable[[str, object], None]
) -> None:
    assert _rounds(SmallJournal, CUTS, torn=torn) == []
    record_property("power cuts of a device", CUTS)


def test_the_same_cuts_do_lose_acknowledged_entries_when_commits_are_not_synced() -> None:
    lost = _rounds(LazilySynced, 100, torn=False, first=0)
    assert len({what.split(":")[0] for what in lost}) >= 20, (
        "the disk of this test does not lose what it must, so the test above proves nothing"
    )
