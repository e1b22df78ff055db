"""What is done about events that are handled: the device's history is told, what is stuck is seen, what is old goes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog

from holdfast.hook import outbox
from holdfast.hook.layout import DATABASE_NAME
from holdfast.hook.patience import Patience, woken_or_after
from holdfast.hook.settings import Settings
from holdfast.protocol.history import Draft
from holdfast.protocol.schedule import SECOND
from holdfast.store import faults
from holdfast.store.world import Clock

PRUNE_EVERY = 240  # of the looks for what is stuck

Report = Callable[[Sequence[Draft]], Awaitable[None]]
"""Appends entries to the device's history, each event's of one kind once; on disk when it returns."""

_log = structlog.get_logger(__name__)


class Housekeeping:
    """Runs beside a worker, on the same database."""

    def __init__(self, home: Path, patience: Patience, report: Report | None, clock: Clock, settings: Settings) -> None:
        self._database = home / DATABASE_NAME
        self._patience = patience
        self._report = report
        self._clock = clock
        self._settings = settings
        self._file = _inode(self._database)  # a worker goes on in a file that others no longer find by its name
        self._unreported = asyncio.Event()
        self.stuck = 0  # events that have been open for too long, at the last look

    def wake(self) -> None:
        """Report to the history now."""
        self._unreported.set()

    async def report_on(self) -> None:
        """Append events to the device's history, those from before a crash included."""
        while self._report is not None:
            self._unreported.clear()
            await self.report_all()
            await woken_or_after(self._unreported, self._settings.summary_s)

    async def report_all(self) -> None:
        while self._report is not None and await self._report_some(self._report):
            pass

    async def _report_some(self, report: Report) -> bool:
        rows = await self._patience.do(outbox.unreported)
        if rows:
            await self._patience.patiently(lambda: report([draft for row in rows for draft in row.drafts]))
            await self._patience.do(lambda tx: outbox.mark_reported(tx, rows))
        return bool(rows)

    async def keep(self, told: Callable[[int], None]) -> None:
        """Prune the database, look for stuck events, and write summaries, again and again."""
        looks = 0
        while True:
            if looks % PRUNE_EVERY == 0:
                while await self._patience.do(lambda tx: outbox.prune(tx, self._clock())):
                    pass
            looks += 1
            await self._look()
            told(self._clock())
            await asyncio.sleep(self._settings.summary_s)

    async def _look(self) -> None:
        if _inode(self._database) != self._file:
            raise faults.FileMissing(str(self._database), "it was put aside or replaced while it was in use")
        now = self._clock()
        before = now - int(self._settings.stuck_after_s * SECOND)
        count, oldest = await self._patience.do(lambda tx: outbox.stuck(tx, before))
        self.stuck = count
        if oldest is not None:
            _log.warning("hook events are stuck", count=count, oldest_s=(now - oldest) / SECOND)


def _inode(path: Path) -> int | None:
    """The inode of the file at this path, if there is one."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
