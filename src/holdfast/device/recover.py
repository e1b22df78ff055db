"""Recovers a home with a damaged database: readable rows go into a new file, and the relay is asked to replay the inbox.

The new log takes a new epoch, because nobody knows what the damaged one sent last. If the history cannot be kept whole, it
begins anew after its last known position. The damaged file is kept beside the new one.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from holdfast.device import feed_verify, operations
from holdfast.device.database import SCHEMA, prepare
from holdfast.device.home import Damaged, Home
from holdfast.protocol.history import LOG_ID_BYTES
from holdfast.store import faults, files, history
from holdfast.store.check import check
from holdfast.store.engine import Transaction
from holdfast.store.migrations import Schema
from holdfast.store.salvage import Salvaged, salvage
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.statements import Statements
from holdfast.store.world import Clock, Random

IN_NO_LOG = bytes(LOG_ID_BYTES)
"""Where a home was replayed its messages that still waits for that."""

_SQL = Statements(__package__, "recover.sql")
_ENDINGS = ("", "-wal", "-shm", "-journal")
# Only what reads the history: a history that began anew would mend nothing that another check finds.
_OF_THE_HISTORY = msgspec.structs.replace(
    SCHEMA,
    checks=[
        {name: check for name, check in checks.items() if re.search(r"\bhistory\b", check)} for checks in SCHEMA.checks
    ],
    walks=(history.verify,),
)
_DAMAGED, _NEW = ".damaged-", ".recovering-"  # between the database's name and the time of the recovery


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """The rows salvaged of every table, where the damaged file is, and which checks the new database fails."""

    tables: tuple[Salvaged, ...]
    damaged: str
    history_is_whole: bool
    findings: tuple[str, ...]


class NothingDamaged(Exception):
    """The database is sound, so there is nothing to recover."""


def recover(home: Home, clock: Clock, random: Random, *, force: bool = False) -> Recovered:
    """Replace a damaged database by a sound one; `force` does so with a sound one, too. The caller holds the home's lock."""
    _take_back(home.database)
    if not force and _is_sound(home.database):
        raise NothingDamaged
    begun = clock()
    new, damaged = (home.database.with_name(f"{home.database.name}{kind}{begun}") for kind in (_NEW, _DAMAGED))
    engine = SqliteEngine(new)
    try:
        prepare(engine, clock, random)
        tables = salvage(home.database, engine)
        with engine.write() as transaction:
            operations.recount(transaction)
            feed_verify.raise_fallen(transaction)
        is_whole = not _findings(engine, _OF_THE_HISTORY)
        with engine.write() as transaction:
            if not is_whole:
                transaction.run(_SQL["forget_entries"])
                transaction.run(_SQL["begin_behind_them"])
            begin_again(transaction, clock())
            operations.mark_backup(transaction)  # so that it takes a new epoch and log id when it is opened
        findings = _findings(engine)
        engine.settle()
    finally:
        engine.close()
    _exchange(home.database, damaged, new)
    return Recovered(tables=tuple(tables), damaged=str(damaged), history_is_whole=is_whole, findings=tuple(findings))


def begin_again(transaction: Transaction, now: int) -> None:
    """Have the home fetch again what it may have lost: documents, and messages that it acknowledged."""
    transaction.run(_SQL["forget_positions"])
    replayed(transaction, now, IN_NO_LOG)


def replayed_in(transaction: Transaction) -> bytes | None:
    """The relay's log in which this home was replayed what it had acknowledged; None if it never lost its inbox.

    A relay that was restored may have messages again that it lacked during the replay, so a home that lost its inbox asks
    again in every other log.
    """
    found = transaction.rows(_SQL["replayed_in"])
    return bytes(found[0][0]) if found else None


def replayed(transaction: Transaction, now: int, log_id: bytes) -> None:
    """Note in which log the replay is complete."""
    transaction.run(_SQL["replayed"], {"log_id": log_id, "now": now})


def _is_sound(path: Path) -> bool:
    try:
        engine = SqliteEngine(path, read_only=True)
    except (faults.Fault, OSError):
        return False
    try:
        return not _findings(engine)
    finally:
        engine.close()


def _findings(engine: SqliteEngine, schema: Schema = SCHEMA) -> list[str]:
    try:
        return [f"{finding.check}: {finding.found}" for finding in check(engine, schema)]
    except faults.Fault as fault:
        return [str(fault)]


def _exchange(path: Path, aside: Path, new: Path) -> None:
    """Move the damaged files aside, the database first, then give the new database its name."""
    _move(path, aside, _ENDINGS)
    new.rename(path)
    files.sync_directory(path.parent)


def _take_back(path: Path) -> None:
    """Undo recoveries that were cut short, so that a new one can begin; refuses if there is no database then."""
    prefix = f"{path.name}{_NEW}"
    for begun in {one.name.removeprefix(prefix).partition("-")[0] for one in path.parent.glob(f"{prefix}*")}:
        damaged = path.with_name(f"{path.name}{_DAMAGED}{begun}")
        if not path.exists() and damaged.exists():
            _move(damaged, path, reversed(_ENDINGS))  # the database last: until it is back, this is done again
        _remove(path.with_name(f"{prefix}{begun}"))
    if not path.exists():
        raise Damaged(str(path), "it is not there, and nothing can be recovered from it")


def _move(path: Path, to: Path, endings: Iterable[str]) -> None:
    for ending in endings:
        old = path.with_name(path.name + ending)
        if old.exists():
            old.rename(to.with_name(to.name + ending))


def _remove(path: Path) -> None:
    for ending in _ENDINGS:
        path.with_name(path.name + ending).unlink(missing_ok=True)
