"""Power cuts under the hook database, which has a rollback journal: what was marked is so afterwards."""

import os
import random
from collections.abc import Callable
from contextlib import suppress

from holdfast.hook import database, outbox
from holdfast.hook.layout import JOURNAL_MODE
from holdfast.protocol.hook_row import HookSignal, HookStatus
from holdfast.store.check import check
from holdfast.store.sqlite import SqliteEngine
from tests.disk import Disk

CUTS = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "20")) * 5
EVENTS = 12  # between two cuts, at most
STEPS = 1_200  # of the disk; more than so many events take, so that some cuts come when all is said

Open = Callable[[str], SqliteEngine]


class PowerCut(Exception):
    """The machine is off; whatever was under way, nobody got an answer."""


def ours(vfs: str) -> SqliteEngine:
    engine = SqliteEngine("hooks", vfs=vfs, exclusive=True, journal_mode=JOURNAL_MODE)
    engine._execute(engine._writer, "PRAGMA locking_mode=NORMAL")  # or SQLite would spare itself the end of the journal
    database.prepare(engine, lambda: 1)
    return engine


def usual(vfs: str) -> SqliteEngine:
    """SQLite's own setting: the journal is deleted, and nobody makes sure that it stays so."""
    engine = ours(vfs)
    engine._execute(engine._writer, "PRAGMA journal_mode=delete; PRAGMA synchronous=FULL")
    return engine


def _work(engine: SqliteEngine, said: dict[str, str], luck: random.Random, disk: Disk) -> None:
    for _ in range(EVENTS):
        event_id = luck.randbytes(16).hex()
        values = {
            "event_id": event_id,
            "agent": "claude",
            "session_id": str(luck.randrange(3)),
            "event_type": "agent_stop",
            "event_name": "Stop",
            "payload": "x" * luck.choice((10, 900, 9000)),
            "occurrence": None,
            "received_at": 1,
        }
        with engine.write() as transaction:
            outbox.take_in(transaction, [{"statement": "insert_event", "values": values}])
        _note(disk, said, event_id, "pending")
        _handle_one(engine, said, disk)


def _handle_one(engine: SqliteEngine, said: dict[str, str], disk: Disk) -> None:
    with engine.write() as transaction:
        (row,) = outbox.claim_batch(transaction, "me", 10, 5, 1, frozenset())
        wanted = outbox.Mark(
            id=row.id, token=row.token, before=HookStatus.LOCKED, signal=HookSignal.UNPROCESSABLE, error="done"
        )
        outbox.mark(transaction, "me", 10, wanted)
    _note(disk, said, row.event_id, "dead")


def _note(disk: Disk, said: dict[str, str], event_id: str, status: str) -> None:
    if disk.off:
        raise PowerCut
    said[event_id] = status


def _lost(opened: Open, cuts: int, *, torn: bool) -> list[str]:
    """What was said and is not so after a cut; the file itself must be sound in any case."""
    lost: list[str] = []
    for seed in range(cuts):
        luck, disk = random.Random(seed), Disk()
        said: dict[str, str] = {}
        for _ in range(3):
            last_step = luck.randrange(1, STEPS)

            def trouble(
                step: int, what: str, last_step: int = last_step, disk: Disk = disk, luck: random.Random = luck
            ) -> None:
                if step == last_step:
                    disk.cut(luck if torn else None)

            disk.trouble = trouble
            with suppress(PowerCut):
                _work(opened(disk.boot()), said, luck, disk)
            if not disk.off:
                disk.cut(luck if torn else None)
            disk.trouble = lambda step, what: None
            engine = opened(disk.boot())
            assert list(check(engine, database.SCHEMA)) == []
            with engine.read() as transaction:
                found: dict[str, str] = dict(transaction.rows("SELECT event_id, status FROM hook_outbox"))
            engine.close()
            lost += [event_id for event_id, status in said.items() if found.get(event_id) not in (status, "dead")]
            said = found
    return lost


def test_every_event_that_was_stored_survives_a_power_cut(record_property: Callable[[str, object], None]) -> None:
    assert _lost(ours, CUTS // 2, torn=False) == []
    assert _lost(ours, CUTS // 2, torn=True) == []
    record_property("power cuts", CUTS)


def test_the_usual_settings_lose_some() -> None:
    """If this ever fails the danger is gone, and so is the reason for ours."""
    assert _lost(usual, 20, torn=True) != []
