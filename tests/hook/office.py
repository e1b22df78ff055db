"""A home with a hook database and workers in it, on virtual time, so that a test decides when what happens."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from holdfast.hook import database, outbox
from holdfast.hook.event import Handler, HookEvent
from holdfast.hook.settings import Settings
from holdfast.hook.store import Store
from holdfast.hook.worker import Worker
from holdfast.store import faults
from holdfast.store.check import check
from holdfast.store.engine import Transaction
from holdfast.store.sqlite import MEMORY, SqliteEngine
from tests.hook.virtual import VirtualLoop

PATIENCE_S = 3600.0  # of virtual time

T = TypeVar("T")
Scene = Callable[[], Coroutine[Any, Any, None]]


class Desk:
    """A handler that remembers what it did, and fails where it is told to."""

    def __init__(self, clock: Callable[[], int], cost_s: float = 0.001) -> None:
        self.clock = clock
        self.cost_s = cost_s
        self.handled: list[tuple[str, int]] = []  # session, number of the event in it
        self.tried: list[tuple[str, int, int, int]] = []  # and attempt, and when
        self.errors: dict[tuple[str, int], list[Exception]] = {}
        self.under_way: set[str] = set()
        self.overlaps: list[tuple[str, int]] = []  # events that came while another of their session was in hand
        self.gate: asyncio.Event | None = None
        self.event_ids: dict[tuple[str, int], set[str]] = {}

    async def __call__(self, event: HookEvent) -> None:
        which = event.session_id, event.payload["n"]
        if event.session_id in self.under_way:
            self.overlaps.append(which)
        self.tried.append((*which, event.attempts, self.clock()))
        self.event_ids.setdefault(which, set()).add(event.event_id)
        self.under_way.add(event.session_id)
        try:
            await asyncio.sleep(self.cost_s)
            if self.gate is not None:
                await self.gate.wait()
            if self.errors.get(which):
                raise self.errors[which].pop(0)
        finally:
            self.under_way.discard(event.session_id)
        self.handled.append(which)

    def of(self, session: str) -> list[int]:
        return [number for name, number in self.handled if name == session]


class Disk(Store):
    """A store on a disk that takes its time, and is not always to be had."""

    latency_s = 0.0
    busy = 0  # how many of the next requests it has no time for

    async def do_soon(self, request: Callable[[Transaction], T]) -> T:
        await asyncio.sleep(self.latency_s)
        if self.busy:
            self.busy -= 1
            raise faults.Busy("disk")
        answer = await super().do_soon(request)
        await asyncio.sleep(self.latency_s)
        return answer


class Office:
    """One home; any number of workers share its database."""

    def __init__(self, home: Path, loop: VirtualLoop, path: Path | None = None) -> None:
        self.home = home
        self.loop = loop
        self.clock = loop.clock
        self.engine = SqliteEngine(MEMORY if path is None else path, journal_mode="truncate")
        database.prepare(self.engine, self.clock)
        self.store = Disk(self.engine, threaded=False)
        self.desk = Desk(self.clock)
        self._luck = random.Random(7)
        self._numbers: dict[str, int] = {}

    def close(self) -> None:
        assert list(check(self.engine, database.SCHEMA)) == []
        assert self.desk.overlaps == []
        self.store.close()

    def random(self, number: int) -> bytes:
        return self._luck.randbytes(number)

    def record(self, session: str, event_type: str, payload: str | None = None) -> dict[str, object]:
        """What a receiver would store: the events of a session are numbered in their payload."""
        self._numbers[session] = number = self._numbers.get(session, 0) + 1
        values = {
            "event_id": self.random(16).hex(),
            "agent": "claude",
            "session_id": session,
            "event_type": event_type,
            "event_name": event_type,
            "payload": json.dumps({"n": number}) if payload is None else payload,
            "occurrence": None,
            "received_at": self.clock(),
        }
        return {"statement": "insert_event", "values": values}

    def put(self, session: str, *event_types: str) -> None:
        records = [self.record(session, event_type) for event_type in event_types]
        with self.engine.write() as transaction:
            assert outbox.take_in(transaction, records) == []

    def rows(self, columns: str = "id, status", where: str = "1 = 1") -> list[Any]:
        with self.engine.read() as transaction:
            found = transaction.rows(f"SELECT {columns} FROM hook_outbox WHERE {where} ORDER BY id")
        return [row[0] if len(row) == 1 else row for row in found]

    def do(self, request: Callable[[Transaction], Any]) -> Any:
        with self.engine.write() as transaction:
            return request(transaction)

    def worker(self, desk: Handler | None = None, **more: Any) -> Worker:
        settings = more.pop("settings", Settings())
        return Worker(
            self.home,
            self.store,
            desk or self.desk,
            clock=self.clock,
            random=self.random,
            settings=settings,
            **more,
        )

    @asynccontextmanager
    async def at_work(self, *workers: Worker) -> AsyncIterator[Worker]:
        """Workers, while the block lasts; the first of them is given."""
        running = workers or (self.worker(),)
        async with asyncio.TaskGroup() as tasks:
            for worker in running:
                tasks.create_task(worker.run())
            try:
                yield running[0]
            finally:
                for worker in running:
                    worker.stop()

    async def until(self, condition: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
        """Let time pass until something holds."""
        async with asyncio.timeout(limit_s):
            while not condition():
                await asyncio.sleep(0.01)

    async def until_all_ended(self) -> None:
        await self.until(lambda: not self.rows("id", "ended_at IS NULL"))
