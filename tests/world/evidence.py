"""What the files of a world say when everything is over, read from the disks as a power cut left them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.device.database import SCHEMA as DEVICE
from holdfast.device.feed_documents import read_clock
from holdfast.device.forks import Fork, kept_through
from holdfast.hook.database import SCHEMA as HOOK
from holdfast.protocol import payload
from holdfast.protocol.clock import VectorClock, dominates
from holdfast.protocol.history import Entry, Kind, Restored
from holdfast.relay.database import SCHEMA as RELAY
from holdfast.store import history
from holdfast.store.check import check
from holdfast.store.engine import Transaction
from holdfast.store.migrations import Schema
from holdfast.store.sqlite import SqliteEngine
from tests.disk import Disk

if TYPE_CHECKING:
    from tests.world.world import World

MESSAGES = frozenset({"dm", "topic"})
DOCUMENTS = "SELECT event_id, (SELECT pubkey FROM author), d, clock, status = 'current' FROM snapshot ORDER BY number"  # of a home
SCHEMAS: dict[str, Schema] = {"relay.db": RELAY, "device.db": DEVICE, "hooks.db": HOOK}


@dataclass(frozen=True)
class Operation:
    """A row of an operation log."""

    sequence: int
    id: str
    client_message_id: str
    destination_kind: str | None
    destination_ref: str | None
    status: str
    body: str | None  # of a message whose blob is still there
    event_id: bytes | None
    broker_message_id: str | None
    history_id: int | None
    log_id: bytes | None
    superseded_by: str | None
    aborted_by: str | None
    expires_at: int | None


@dataclass(frozen=True)
class Arrived:
    """A row of an inbox."""

    arrival: int
    id: str
    sender: str
    client_message_id: str
    event_id: bytes
    epoch: bytes
    sequence: int
    topic: str | None
    body: str | None
    status: str
    replayed: bool
    log_id: bytes
    history_id: int
    is_applied: bool


@dataclass(frozen=True)
class Version:
    """A snapshot of a document, and whether it counts as current where it was found."""

    event_id: bytes
    author: str
    d: str
    clock: VectorClock
    is_current: bool


@dataclass(frozen=True)
class HookRow:
    """A row of a hook outbox."""

    id: int
    event_id: str
    session_id: str
    event_type: str
    status: str
    number: int  # in its session, as the agent counted


@dataclass
class HomeFile:
    """What one home has on its disk."""

    name: str
    member: str
    author: str
    operations: dict[int, Operation]
    scheduled: set[str]
    inbox: list[Arrived]
    arrived: set[bytes]  # event ids in the inbox, duplicates included
    receipts: set[bytes]  # event ids of receipts that came
    receipted: list[tuple[int, str, str]]  # sequence, recipient, status
    fates: set[tuple[int, str, str]]  # sequence, recipient, kind
    entries: list[Entry]
    versions: list[Version]
    hooks: list[HookRow]
    by_id: dict[str, Operation] = field(init=False)
    by_row: dict[str, Operation] = field(init=False)

    def __post_init__(self) -> None:
        self.by_id = {one.client_message_id: one for one in self.operations.values()}
        self.by_row = {one.id: one for one in self.operations.values()}

    def last(self, operation: Operation) -> Operation:
        """The row that stands for this one now."""
        while operation.superseded_by is not None and operation.superseded_by in self.by_row:
            operation = self.by_row[operation.superseded_by]
        return operation

    def was_offered_before_it_was_retired(self, operation: Operation) -> bool:
        """Whether it may have been on its way when somebody retired it."""
        return self._offers(operation)[0]

    def was_offered_when_it_was_retired(self, operation: Operation) -> bool:
        """Whether its sender took it up once more, though another row had its place."""
        return self._offers(operation)[1]

    def _offers(self, operation: Operation) -> tuple[bool, bool]:
        """Whether attempts began before and after the entry that retired it."""
        told = [one for one in self.entries if one.sequence == operation.sequence]
        retired = next((place for place, one in enumerate(told) if one.kind is Kind.ABORTED), len(told))
        begun = [place for place, one in enumerate(told) if one.kind is Kind.ATTEMPTED and one.reason is None]
        return any(place < retired for place in begun), any(place > retired for place in begun)


@dataclass
class RelayFile:
    """What a relay has on its disk."""

    name: str
    log_id: bytes
    entries: dict[int, Entry]
    forks: list[Fork]
    names: dict[str, str]  # of members, by id
    open: dict[str, int]  # deliveries that wait, by member
    revoked: set[str]  # members that are out, by id
    versions: list[Version]
    raw: bytes  # every byte of every file

    def entry(self, log_id: bytes | None, seq: int | None) -> Entry | None:
        """What stands at a position of a log, if this relay still has it."""
        if log_id is None or seq is None:
            return None
        if log_id != self.log_id:
            kept = kept_through(log_id, self.forks)
            if kept is None or seq > kept:
                return None
        return self.entries.get(seq)

    def of(self, *kinds: Kind) -> Iterator[Entry]:
        return (entry for entry in self.entries.values() if entry.kind in kinds)


Shelf = dict[str, list[Version]]  # what is known of one author's documents, by place


@dataclass
class Evidence:
    """All files that have to do with one relay."""

    relay: RelayFile
    homes: dict[str, HomeFile]  # of its mesh
    followers: list[HomeFile]  # whose documents it keeps, of whichever mesh
    shelf: Shelf  # of its mesh's author: at all relays that keep the documents, and in the homes that are not out
    out: frozenset[str]  # names of homes that were put out of the mesh
    unread: list[str]  # what a home has read of it, and does not have

    def home_of(self, member: str) -> HomeFile | None:
        return next((home for home in self.homes.values() if home.member == member), None)


def read(world: "World") -> list[Evidence]:
    """Everything, relay by relay."""
    relays = {name: read_relay(name, machine.disk) for name, machine in world.relays.items()}
    homes = {}
    for name, machine in world.homes.items():
        members = {told: member for member, told in relays[machine.relay.name].names.items()}
        homes[name] = read_home(name, members[name], machine.disk)
    unread = all_unread(world)
    return [
        _evidence(world, relay, relays, homes, [what for about, what in unread if about == relay.name])
        for relay in relays.values()
    ]


def _evidence(
    world: "World",
    relay: RelayFile,
    relays: dict[str, RelayFile],
    homes: dict[str, HomeFile],
    unread: list[str],
) -> Evidence:
    own = {name: home for name, home in homes.items() if world.homes[name].relay.name == relay.name}
    out = frozenset(relay.names[member] for member in relay.revoked) | (frozenset(world.journal.ended) & frozenset(own))
    here = [home for name, home in own.items() if name not in out]
    shelf: Shelf = {home.name: home.versions for home in here}
    for name in dict.fromkeys(relay.name for home in here for relay in world.homes[home.name].followed):
        shelf[name] = [one for one in relays[name].versions if one.author == here[0].author]
    followers = [home for name, home in homes.items() if world.relays[relay.name] in world.homes[name].followed]
    return Evidence(relay, own, followers, shelf, out, unread)


def broken_rules(disk: Disk) -> list[str]:
    """Every rule of its own that a database on a disk breaks."""
    found = []
    for name, schema in SCHEMAS.items():
        if name in disk.files:
            with _opened(disk, name) as engine:
                found += [f"{name}: {finding.check}: {finding.found}" for finding in check(engine, schema)]
    return found


@dataclass(frozen=True)
class Feed:
    """What is current at a relay, with its position there."""

    log_id: bytes
    current: list[tuple[int, Version]]


@dataclass(frozen=True)
class Followed:
    """Up to where a home says it has read each log, and what it knows."""

    author: str
    positions: dict[bytes, int]
    known: list[Version]


def all_unread(world: "World") -> list[tuple[str, str]]:
    """What homes say they have read of a relay's feed, and do not have, nor anything that knows of it; by relay."""
    feeds = {name: _read_feed(relay.disk) for name, relay in world.relays.items()}
    homes = {name: _read_followed(home.disk) for name, home in world.homes.items()}
    return [
        (relay, f"{name} {what}")
        for name, home in homes.items()
        for relay, feed in feeds.items()
        for what in _unread(relay, feed, home)
    ]


def _read_feed(disk: Disk) -> Feed:
    with _opened(disk, "relay.db") as engine, engine.read() as transaction:
        positions = [
            seq for (seq,) in transaction.rows("SELECT seq FROM snapshot WHERE superseded_seq IS NULL ORDER BY seq")
        ]
        versions = _versions(
            transaction, "SELECT event_id, author, d, clock, 1 FROM snapshot WHERE superseded_seq IS NULL ORDER BY seq"
        )
        return Feed(history.head(transaction).log_id, list(zip(positions, versions, strict=True)))


def _read_followed(disk: Disk) -> Followed:
    with _opened(disk, "device.db") as engine, engine.read() as transaction:
        positions = transaction.rows("SELECT log_id, seq FROM feed_relay WHERE log_id IS NOT NULL")
        return Followed(_author(transaction), dict(positions), _versions(transaction, DOCUMENTS))


def _unread(relay: str, feed: Feed, home: Followed) -> Iterator[str]:
    through = home.positions.get(feed.log_id, 0)
    here = {one.event_id for one in home.known}
    for seq, one in feed.current:
        if seq > through or one.author != home.author or one.event_id in here:
            continue
        if not any(other.d == one.d and dominates(other.clock, one.clock) for other in home.known):
            yield f"has read the feed of {relay} up to {through}, and lacks version {one.event_id.hex()[:8]} at {seq}"


def applied_on(disk: Disk) -> set[str]:
    """Ids of messages that would count as applied if the power went now."""
    with _opened(disk, "device.db", after_a_cut=True) as engine, engine.read() as transaction:
        return {str(one) for (one,) in transaction.rows("SELECT id FROM inbox WHERE applied_at IS NOT NULL")}


def read_home(name: str, member: str, disk: Disk) -> HomeFile:
    with _opened(disk, "hooks.db") as engine, engine.read() as transaction:
        hooks = [
            HookRow(row_id, event_id, session_id, event_type, status, json.loads(text)["number"])
            for row_id, event_id, session_id, event_type, status, text in transaction.rows(
                "SELECT id, event_id, session_id, event_type, status, payload FROM hook_outbox ORDER BY id"
            )
        ]
    with _opened(disk, "device.db") as engine:
        entries = list(history.walk(engine))
        with engine.read() as transaction:
            return HomeFile(
                name=name,
                member=member,
                author=_author(transaction),
                operations={one.sequence: one for one in _operations(transaction)},
                scheduled={row[0] for row in transaction.rows("SELECT client_message_id FROM scheduled_send")},
                inbox=list(_inbox(transaction)),
                arrived=_event_ids(transaction, "inbox") | _event_ids(transaction, "inbox_duplicate"),
                receipts=_event_ids(transaction, "receipt"),
                receipted=[
                    (int(sequence), str(recipient), str(status))
                    for sequence, recipient, status in transaction.rows(
                        "SELECT sequence, recipient, status FROM send_receipt"
                    )
                ],
                fates={
                    (int(sequence), str(recipient), str(kind))
                    for sequence, recipient, kind in transaction.rows("SELECT sequence, recipient, kind FROM fate")
                },
                entries=entries,
                hooks=hooks,
                versions=_versions(transaction, DOCUMENTS),
            )


def read_relay(name: str, disk: Disk) -> RelayFile:
    with _opened(disk, "relay.db") as engine:
        entries = {entry.seq: entry for entry in history.walk(engine)}
        with engine.read() as transaction:
            head = history.head(transaction)
            names = {str(member): str(known) for member, known in transaction.rows("SELECT member, name FROM member")}
            waiting: dict[str, int] = dict(
                transaction.rows("SELECT member, count(*) FROM delivery WHERE state = 'open' GROUP BY member")
            )
            revoked = {
                str(member) for (member,) in transaction.rows("SELECT member FROM member WHERE status = 'revoked'")
            }
            versions = _versions(
                transaction, "SELECT event_id, author, d, clock, superseded_seq IS NULL FROM snapshot ORDER BY seq"
            )
    restored = [Restored.decode(entry.detail) for entry in entries.values() if entry.kind is Kind.RESTORED]
    return RelayFile(
        name=name,
        log_id=head.log_id,
        entries=entries,
        forks=[Fork(one.old_log_id, one.fork_seq) for one in restored],
        names=names,
        open=waiting,
        revoked=revoked,
        versions=versions,
        raw=b"".join(bytes(file.durable) for file in disk.files.values()),
    )


@contextmanager
def _opened(disk: Disk, name: str, *, after_a_cut: bool = False) -> Iterator[SqliteEngine]:
    """A database on a copy of a disk, as it is, or as it would be without what is not synced: to look at it changes nothing."""
    copy = Disk()
    copy.files = {path: file.after_kill() for path, file in disk.files.items()}
    if after_a_cut:
        copy.cut()
    engine = SqliteEngine(name, vfs=copy.boot(), exclusive=True)
    try:
        yield engine
    finally:
        engine.close()


def _operations(transaction: Transaction) -> Iterator[Operation]:
    for sequence, kind, blob, *rest in transaction.rows(
        "SELECT sequence, destination_kind, blob, id, client_message_id, destination_ref, status, event_id,"
        " broker_message_id, history_id, log_id, superseded_by, aborted_by, expires_at FROM operation_log ORDER BY sequence"
    ):
        row_id, client_message_id, ref, status, event_id, broker, history_id, log_id, superseded_by, *last = rest
        aborted_by, expires_at = last
        yield Operation(
            sequence=sequence,
            id=row_id,
            client_message_id=client_message_id,
            destination_kind=kind,
            destination_ref=ref,
            status=status,
            body=payload.decode(blob).body.decode() if kind in MESSAGES and blob is not None else None,
            event_id=bytes.fromhex(json.loads(blob)["id"]) if kind == "feed" and blob is not None else event_id,
            broker_message_id=broker,
            history_id=history_id,
            log_id=log_id,
            superseded_by=superseded_by,
            aborted_by=aborted_by,
            expires_at=expires_at,
        )


def _inbox(transaction: Transaction) -> Iterator[Arrived]:
    for row in transaction.rows(
        "SELECT arrival, id, sender, client_message_id, event_id, epoch, sequence, topic, body, status, replayed, log_id,"
        " history_id, applied_at IS NOT NULL FROM inbox ORDER BY arrival"
    ):
        values: list[Any] = list(row)
        values[8] = None if values[8] is None else bytes(values[8]).decode()
        values[10], values[13] = bool(values[10]), bool(values[13])
        yield Arrived(*values)


def _versions(transaction: Transaction, statement: str) -> list[Version]:
    return [
        Version(bytes(event_id), author, d, read_clock(clock), bool(is_current))
        for event_id, author, d, clock, is_current in transaction.rows(statement)
    ]


def _author(transaction: Transaction) -> str:
    return str(transaction.rows("SELECT pubkey FROM author")[0][0])


def _event_ids(transaction: Transaction, table: str) -> set[bytes]:
    return {bytes(event_id) for (event_id,) in transaction.rows(f"SELECT event_id FROM {table}")}
