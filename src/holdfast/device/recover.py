"""Recovering a home whose database is damaged: what can be read goes into a new file, and the relay fills the inbox again.

The new log is another sender, with an epoch of its own: nobody can know what the damaged one had sent last. Where the
history cannot be carried over whole, it begins anew behind its last known position. The damaged file stays beside.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from holdfast.device import feed_verify, operations
from holdfast.device.database import SCHEMA, prepare
from holdfast.device.home import Damaged, Home
from holdfast.protocol.history import LOG_ID_BYTES
from holdfast.store import faults, files
from holdfast.store.check import check
from holdfast.store.engine import Transaction
from holdfast.store.salvage import Salvaged, salvage
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.statements import Statements
from holdfast.store.world import Clock, Random

_SQL = Statements(__package__, "recover.sql")
_ENDINGS = ("", "-wal", "-shm", "-journal")
_DAMAGED, _NEW = ".damaged-", ".recovering-"  # behind the database's name, before the time of the recovery


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: how much of every table, where the damaged file is, and which rules do not hold of the new one."""

    tables: tuple[Salvaged, ...]
    damaged: str
    history_is_whole: bool
    findings: tuple[str, ...]


class NothingDamaged(Exception):
    """The database is sound, so there is nothing to recover."""


def recover(home: Home, clock: Clock, random: Random, *, force: bool = False) -> Recovered:
    """Put a sound database in the place of a damaged one; the caller is alone in the home."""
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
        is_whole = not _findings(engine)
        with engine.write() as transaction:
            if not is_whole:
                transaction.run(_SQL["forget_entries"])
                transaction.run(_SQL["begin_behind_them"])
            begin_again(transaction, clock())
            operations.mark_backup(transaction)  # whoever opens it takes a new epoch and a new log id
        findings = _findings(engine)
    finally:
        engine.close()
    _exchange(home.database, damaged, new)
    return Recovered(tables=tuple(tables), damaged=str(damaged), history_is_whole=is_whole, findings=tuple(findings))


def begin_again(transaction: Transaction, now: int) -> None:
    """Fetch anew what a home may have had and lost: documents, and what it acknowledged to its relay."""
    transaction.run(_SQL["forget_positions"])
    transaction.run(_SQL["want_replay"], {"log_id": bytes(LOG_ID_BYTES), "now": now})


def wants_replay(transaction: Transaction) -> bool:
    """Whether the inbox is to be filled with what was acknowledged before."""
    return bool(transaction.rows(_SQL["wants_replay"]))


def replayed(transaction: Transaction) -> None:
    """Everything has come once more."""
    transaction.run(_SQL["replayed"])


def _is_sound(path: Path) -> bool:
    try:
        engine = SqliteEngine(path, read_only=True)
    except (faults.Fault, OSError):
        return False
    try:
        return not _findings(engine)
    finally:
        engine.close()


def _findings(engine: SqliteEngine) -> list[str]:
    try:
        return [f"{finding.check}: {finding.found}" for finding in check(engine, SCHEMA)]
    except faults.Fault as fault:
        return [str(fault)]


def _exchange(path: Path, aside: Path, new: Path) -> None:
    """The damaged files step aside together, the database first, then the new one takes the name."""
    _move(path, aside, _ENDINGS)
    for ending in _ENDINGS[1:]:
        new.with_name(new.name + ending).unlink(missing_ok=True)  # closed, so whatever is left holds nothing
    new.rename(path)
    files.sync_directory(path.parent)


def _take_back(path: Path) -> None:
    """Undo what recoveries left that were cut short, to begin anew. Refuses where there is no database: nothing is recovered."""
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
