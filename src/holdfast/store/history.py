"""The history of a database: entries appended in the same transaction as the change they record, and never altered.

Positions are dense and in the order of commit, because every writer takes the head row first. Old entries leave only as
a prefix; the anchor keeps the chain of the last one removed, so the rest can still be verified.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.protocol.history import (
    Draft,
    Entry,
    Kind,
    Pruned,
    Restored,
    broken_links,
    genesis,
    link,
)
from holdfast.store.engine import Engine, Row, Transaction, Value
from holdfast.store.finding import Finding
from holdfast.store.migrations import Migration
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "history.sql")
_COLUMNS = ("seq", "at", *Draft.__struct_fields__, "chain")

MIGRATION = Migration.load(__package__, "history")
"""The step of a program's schema that gives it a history."""

CHECKS = Statements(__package__, "checks.sql")

PAGE_ROWS = 10_000
"""How many entries one read transaction of a long walk takes."""


BREAKS_SHOWN_MAX = 20
"""How many breaks of the chain are reported."""


class HistoryPruned(Exception):
    """The wanted entries were pruned: a reader that went on would have a gap without knowing."""

    def __init__(self, after: int, anchor_seq: int) -> None:
        super().__init__(f"entries up to {anchor_seq} were pruned, so reading cannot start after {after}")
        self.after = after
        self.anchor_seq = anchor_seq

    def __reduce__(self) -> tuple[type["HistoryPruned"], tuple[int, int]]:
        return type(self), (self.after, self.anchor_seq)  # so that it can be pickled for another process


class EntryDamaged(Exception):
    """An entry holds values that were never written there."""

    def __init__(self, seq: int, detail: str) -> None:
        super().__init__(f"entry {seq}: {detail}")
        self.seq = seq
        self.detail = detail

    def __reduce__(self) -> tuple[type["EntryDamaged"], tuple[int, str]]:
        return type(self), (self.seq, self.detail)  # likewise


class Head(msgspec.Struct, frozen=True):
    """Which log this is, where it ends, and where it begins."""

    log_id: bytes
    seq: int
    at: int
    chain: bytes
    anchor_seq: int
    anchor_chain: bytes


def create(transaction: Transaction, log_id: bytes) -> None:
    """Begin a history in a new database; nothing happens if there is one."""
    transaction.run(_SQL["create_head"], {"log_id": log_id, "chain": genesis(log_id)})


def head(transaction: Transaction) -> Head:
    return Head(*transaction.rows(_SQL["head"])[0])


def chain_at(transaction: Transaction, seq: int) -> bytes | None:
    """The chain at a position; None if there is no such entry, or it was pruned."""
    found = transaction.rows(_SQL["chain_at"], {"seq": seq})
    return bytes(found[0][0]) if found else None


def append(transaction: Transaction, now: int, drafts: Sequence[Draft]) -> list[Entry]:
    """Append the drafts at the next positions. Times never go back, whatever the clock does."""
    last = lock(transaction)
    seq, chain, at = last.seq, last.chain, max(now, last.at)
    entries = []
    for draft in drafts:
        seq += 1
        entry = link(chain, seq, at, draft)
        chain = entry.chain
        entries.append(entry)
    if entries:
        transaction.insert("history", _COLUMNS, map(_to_row, entries))
        transaction.run(_SQL["move_head"], {"seq": seq, "at": at, "chain": chain})
    return entries


def read(transaction: Transaction, after: int, until: int, limit: int = PAGE_ROWS) -> list[Entry]:
    """Entries with after < seq ≤ until, in order, at most `limit`."""
    anchor_seq = head(transaction).anchor_seq
    if after < anchor_seq:
        raise HistoryPruned(after, anchor_seq)
    rows = transaction.rows(_SQL["read"], {"after": after, "until": until, "limit": limit})
    return [_from_row(row) for row in rows]


def prune(transaction: Transaction, now: int, through: int, signature: bytes = b"") -> None:
    """Delete the entries up to `through`, keep their end as the anchor, and append a `pruned` entry with the signature."""
    last = lock(transaction)
    if not last.anchor_seq < through <= last.seq:
        raise ValueError(f"cannot prune through {through}: the history has {last.anchor_seq + 1} to {last.seq}")
    ((chain,),) = transaction.rows(_SQL["chain_at"], {"seq": through})
    append(transaction, now, [Draft(kind=Kind.PRUNED, detail=Pruned(through, chain, signature).encode())])
    transaction.run(_SQL["move_anchor"], {"seq": through, "chain": chain})
    transaction.run(_SQL["delete_through"], {"seq": through})


def fork(transaction: Transaction, now: int, log_id: bytes, epoch: bytes | None = None) -> None:
    """Continue the history under a new log id: this database is a copy, and the original may have continued differently."""
    last = lock(transaction)
    transaction.run(_SQL["rename"], {"log_id": log_id})
    detail = Restored(last.log_id, log_id, last.seq, last.chain).encode()
    append(transaction, now, [Draft(kind=Kind.RESTORED, epoch=epoch, detail=detail)])


def walk(engine: Engine, page_rows: int = PAGE_ROWS) -> Iterator[Entry]:
    """Every entry from anchor to head, read in short transactions so that writers do not wait."""
    with engine.read() as transaction:
        found = head(transaction)
    after = found.anchor_seq
    while after < found.seq:
        with engine.read() as transaction:
            page = read(transaction, after, found.seq, page_rows)
        if not page:
            return
        yield from page
        after = page[-1].seq


def verify(engine: Engine) -> Iterator[Finding]:
    """Every entry hashes, with the one before it, to its chain."""
    while True:
        try:
            breaks = list(_breaks(engine))
        except HistoryPruned:
            continue  # entries were pruned meanwhile: start again at the new anchor
        for seq, wrong in breaks[:BREAKS_SHOWN_MAX]:
            yield Finding("chain", verify.__doc__ or "", f"entry {seq} {wrong}")
        return


def _breaks(engine: Engine) -> Iterator[tuple[int, str]]:
    with engine.read() as transaction:
        found = head(transaction)
    forks: list[Restored] = []
    try:
        yield from broken_links(found.anchor_seq, found.anchor_chain, _noting_forks(walk(engine), forks))
    except EntryDamaged as damage:
        yield damage.seq, f"cannot be read: {damage.detail}"
        return
    names = [found.log_id] if not forks else [forks[0].old_log_id, *(fork.new_log_id for fork in forks)]
    if found.anchor_seq == 0 and found.anchor_chain != genesis(names[0]):
        yield 0, "is not where a log of this id begins"
    if found.log_id != names[-1]:
        yield found.seq, "belongs to a log of another id"


def _noting_forks(entries: Iterator[Entry], forks: list[Restored]) -> Iterator[Entry]:
    for entry in entries:
        if entry.kind is Kind.RESTORED:
            forks.append(Restored.decode(entry.detail))
        yield entry


def lock(transaction: Transaction) -> Head:
    """Lock the head row and return it, so that writers go one after another."""
    return Head(*transaction.rows(_SQL["lock_head"])[0])


def _to_row(entry: Entry) -> tuple[Value, ...]:
    """An entry as a row of the table. Written out field by field, because it runs thousands of times."""
    return (
        *(entry.seq, entry.at, entry.kind, entry.mesh, entry.message_id, entry.client_message_id, entry.sender),
        *(entry.epoch, entry.sequence, entry.recipient, _list(entry.recipients), _list(entry.mentions)),
        *(entry.destination_kind, entry.destination_ref, entry.event_id, entry.size),
        *(None if entry.was_stored is None else int(entry.was_stored), entry.reason, entry.detail, entry.chain),
    )


def _list(values: tuple[Any, ...]) -> str:
    return msgspec.json.encode(values).decode() if values else "[]"


def _from_row(row: Row) -> Entry:
    values = dict(zip(_COLUMNS, row, strict=True))
    try:
        values["kind"] = Kind(values["kind"])
        values["recipients"] = msgspec.json.decode(values["recipients"], type=tuple[tuple[str, str], ...])
        values["mentions"] = msgspec.json.decode(values["mentions"], type=tuple[str, ...])
    except (ValueError, msgspec.DecodeError) as error:
        raise EntryDamaged(values["seq"], str(error)) from error
    values["was_stored"] = None if values["was_stored"] is None else bool(values["was_stored"])
    return Entry(**values)
