"""From the spool into the database: what receivers could not store themselves, in the order in which they said it."""

from pathlib import Path

import structlog

from holdfast.hook import outbox, spool
from holdfast.hook.layout import SPOOL_NAME
from holdfast.hook.store import Store
from holdfast.store import faults, files

_log = structlog.get_logger(__name__)


def is_needed(home: Path) -> bool:
    """Whether something waits in the spool."""
    return not spool.is_empty(str(home))


async def take_in(home: Path, store: Store) -> int:
    """Store what is in the spool, and empty it only after that is on disk; says how many lines that were."""
    try:
        with spool.Emptying(str(home)) as held:
            return await _stored(home, store, held)
    except OSError as error:
        raise files.meaning(error, home / SPOOL_NAME) from error


async def _stored(home: Path, store: Store, held: spool.Emptying) -> int:
    if not held.records and not held.damaged:
        return 0
    try:
        rejected = await store.do_soon(lambda tx: outbox.take_in(tx, held.records))
    except faults.Fault as fault:
        if not fault.temporary:
            raise
        return 0  # receivers wait for the spool: it is not held until the database has time
    if rejected or held.damaged:
        _log.error("lines of the spool cannot be read", rejected=len(rejected), damaged=held.damaged)
    if rejected:
        spool.put_aside(str(home), rejected)
    held.truncate()
    return len(held.records)
