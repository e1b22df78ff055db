"""The hook worker inside the daemon's process: opened beside the device, given the device's history, watched, and closed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from holdfast.device import hook_entries
from holdfast.device.device import Device
from holdfast.hook import database, settings, spool
from holdfast.hook.event import Handler, nothing
from holdfast.hook.layout import DATABASE_NAME
from holdfast.hook.store import Store
from holdfast.hook.worker import Worker
from holdfast.protocol.history import Draft
from holdfast.protocol.schedule import SECOND
from holdfast.store import faults
from holdfast.wire.metrics import Counts

REOPEN_S = 30.0  # after a fault that did not pass; messages are carried meanwhile, and events go to the spool
BUSY_REOPEN_S = 3.0  # after one that may have passed by then

_log = structlog.get_logger("holdfast.hooks")


class HookService:
    """A worker that is started again whatever happens to its database."""

    def __init__(self, device: Device, handle: Handler = nothing) -> None:
        self._device = device
        self._handle = handle
        self._worker: Worker | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Handle events until told to stop."""
        while not self._stopping.is_set():
            wait_s = REOPEN_S
            try:
                await self._work()
            except* faults.Fault as group:
                for fault in group.exceptions:
                    _log.error("hook events are not handled", detail=str(fault))
                    wait_s = BUSY_REOPEN_S if getattr(fault, "temporary", False) else wait_s
            finally:
                self._worker = None
            await self._pause(wait_s)

    def stop(self) -> None:
        self._stopping.set()
        if self._worker is not None:
            self._worker.stop()

    def counts(self) -> dict[str, int]:
        """What Prometheus sees."""
        if self._worker is None:
            return {"hook_worker": 0, "hook_spool_bytes": spool.size(str(self._device.home.path))}
        found = self._worker.statistics
        return {f"hook_{name}": number for name, number in found.counts.items()} | {
            "hook_spool_bytes": self._worker.spool_bytes,
            "hook_worker": int(not self._worker.is_failing),
            "hook_queue_depth": self._worker.depth,
            "hook_stuck": self._worker.stuck,
            "hook_lag_p95_ms": found.lag.p95 * 1000 // SECOND,
            "hook_lag_p99_ms": found.lag.p99 * 1000 // SECOND,
        }

    async def _work(self) -> None:
        device, home = self._device, self._device.home.path
        # In a thread, because a database that somebody keeps locked is waited for, and messages must be carried meanwhile.
        store = Store(await asyncio.to_thread(database.opened, home / DATABASE_NAME, device.clock))
        try:
            self._worker = Worker(
                home,
                store,
                self._handle,
                report=self._report,
                clock=device.clock,
                random=device.random,
                settings=settings.load(home),
            )
            if not self._stopping.is_set():
                await self._worker.run()
        finally:
            await asyncio.to_thread(store.close)

    async def _report(self, drafts: Sequence[Draft]) -> None:
        await self._device.do_soon(lambda tx: hook_entries.append(tx, self._device.clock(), drafts))

    async def _pause(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._stopping.wait()
        except TimeoutError:
            return


@asynccontextmanager
async def hooks_handled(device: Device, counts: Counts, stop: asyncio.Event) -> AsyncIterator[None]:
    """Handle hook events while the block lasts; a mistake of ours ends the whole program, which is then started anew."""
    service = HookService(device)
    counts.watch_counts(service.counts)
    working = asyncio.create_task(service.run(), name="holdfast-hooks")
    working.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        service.stop()
        await working
