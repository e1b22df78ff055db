"""Statistics of a relay: how much it holds and how much waits, read while it may be running."""

from contextlib import closing
from pathlib import Path

import msgspec

from holdfast.protocol.schedule import DAY, HOUR, SECOND
from holdfast.relay.database import open_to_read
from holdfast.store import history
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "statistics.sql")

_AGES = {"minute": 60 * SECOND, "hour": HOUR, "day": DAY, "week": 7 * DAY}
_JOURNAL = "-wal"


class OpenByAge(msgspec.Struct, frozen=True):
    """Open deliveries by how long ago their message was accepted."""

    under_a_minute: int
    under_an_hour: int
    under_a_day: int
    under_a_week: int
    older: int


class ConsumerStatistics(msgspec.Struct, frozen=True):
    """How far a reader of the history is behind; None if its checkpoint belongs to another log."""

    name: str
    seq: int
    behind: int | None
    moved_at: int


class Statistics(msgspec.Struct, frozen=True):
    """The numbers of one relay at one moment. Times are microseconds since 1970."""

    log_id: str
    seq: int
    at: int | None  # of the last entry
    entries: int  # that are kept; older ones are pruned
    meshes: int
    members: int
    members_revoked: int
    topics: int
    messages: int
    ids: int
    deliveries_open: int
    open_by_age: OpenByAge
    oldest_open_at: int | None
    last_accepted_at: int | None
    consumers: list[ConsumerStatistics]
    files: dict[str, int]  # bytes


def read(where: str, now: int) -> Statistics:
    """The statistics of a relay's database, by its path or URL. Reads only."""
    with closing(open_to_read(where)) as engine, engine.read() as transaction:
        files = {"database": transaction.size_bytes()} if engine.is_shared else _files(Path(where))
        return _read(transaction, now, files)


def _files(path: Path) -> dict[str, int]:
    files = (path, path.with_name(path.name + _JOURNAL))
    return {file.name: file.stat().st_size for file in files if file.exists()}


def _read(transaction: Transaction, now: int, files: dict[str, int]) -> Statistics:
    head = history.head(transaction)
    ((meshes, members, revoked, topics, messages, ids, deliveries_open),) = transaction.rows(_SQL["counts"])
    ((*ages, oldest),) = transaction.rows(_SQL["open_by_age"], {name: now - age for name, age in _AGES.items()})
    accepted = transaction.rows(_SQL["last_accepted_at"])
    return Statistics(
        log_id=head.log_id.hex(),
        seq=head.seq,
        at=head.at if head.seq else None,
        entries=head.seq - head.anchor_seq,
        meshes=meshes,
        members=members,
        members_revoked=revoked,
        topics=topics,
        messages=messages,
        ids=ids,
        deliveries_open=deliveries_open,
        open_by_age=OpenByAge(*ages),
        oldest_open_at=oldest,
        last_accepted_at=accepted[0][0] if accepted else None,
        consumers=_consumers(transaction, head),
        files=files,
    )


def _consumers(transaction: Transaction, head: history.Head) -> list[ConsumerStatistics]:
    return [
        ConsumerStatistics(name, seq, head.seq - seq if log_id == head.log_id else None, moved_at)
        for name, log_id, seq, moved_at in transaction.rows(_SQL["consumers"])
    ]
