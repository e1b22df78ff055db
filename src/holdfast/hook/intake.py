"""From the spool into the database: what receivers could not store themselves, in the order in which they said it."""

import asyncio
from pathlib import Path

import structlog

from holdfast.hook import outbox, spool
from holdfast.hook.layout import SPOOL_NAME
from holdfast.hook.store import Store
from holdfast.store import faults, files

LOCK_TRIES = 100

_log = structlog.get_logger(__name__)


def is_needed(home: Path) -> bool:
    """Whether something waits in the spool."""
    return not spool.is_empty(str(home))


class Intake:
    """Stores what is in the spool. It may be large: it is taken in pieces, and held only for the last of them."""

    def __init__(self, home: Path, store: Store) -> None:
        self._home = home
        self._store = store
        self._mark = spool.Mark()

    async def take_in(self) -> int:
        """Store what is in the spool, and empty it only after that is on disk; says how many lines that were."""
        try:
            number = await self._take_ahead()
            return number + await self._take_last()
        except OSError as error:
            raise files.meaning(error, self._home / SPOOL_NAME) from error

    async def _take_ahead(self) -> int:
        number = 0
        while (piece := spool.ahead(str(self._home), self._mark)) is not None:
            if not await self._stored(piece.records, piece.damaged):
                break
            self._mark = piece.mark
            number += len(piece.records)
        return number

    async def _take_last(self) -> int:
        for _ in range(LOCK_TRIES):  # receivers have it for moments only
            with spool.Emptying(str(self._home), self._mark) as held:
                if held.is_held and await self._stored(held.records, held.damaged):
                    held.truncate()
                    self._mark = spool.Mark()
                    return len(held.records)
                if held.is_held:
                    return 0  # receivers wait for the spool: it is not held until the database has time
            await asyncio.sleep(spool.LOCK_POLL_S)
        return 0

    async def _stored(self, records: list[spool.Record], damaged: list[bytes]) -> bool:
        """Have lines in the database; not if it has no time for them."""
        try:
            rejected = await self._store.do_soon(lambda tx: outbox.take_in(tx, records))
        except faults.Fault as fault:
            if not fault.temporary:
                raise
            return False
        if rejected or damaged:
            _log.error("lines of the spool cannot be read", rejected=len(rejected), damaged=len(damaged))
            spool.put_aside(str(self._home), rejected, damaged)
        return True
