"""The operation log inside a transaction; every change of an entry is written together with its history entry."""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property

import msgspec

from holdfast.protocol import payload, ulid
from holdfast.protocol.envelope import EPOCH_BYTES
from holdfast.protocol.fingerprint import Priority
from holdfast.protocol.history import LOG_ID_BYTES, Draft, Kind
from holdfast.protocol.outbox import Status
from holdfast.protocol.payload import Payload
from holdfast.store import faults, history
from holdfast.store.engine import Engine, Row, Transaction, Value
from holdfast.store.finding import Finding
from holdfast.store.statements import Statements
from holdfast.store.world import Random

_SQL = Statements(__package__, "operation_log.sql")

PRUNED_AT_ONCE = 500  # entries that one statement prunes

PAGE_ROWS = 100
"""How many entries one read transaction of a long walk takes; they may hold a megabyte each."""

SEQUENCE_MAX = 2**63 - 1
"""The greatest sequence a database integer can hold."""


class SequenceTaken(Exception):
    """The sequence belongs to an entry of another object, so the entry was not written."""

    def __init__(self, sequence: int) -> None:
        super().__init__(
            f"sequence {sequence} belongs to another object; nothing was written. "
            "Let append_next allocate sequences, or read max_sequence() again."
        )
        self.sequence = sequence

    def __reduce__(self) -> tuple[type["SequenceTaken"], tuple[int]]:
        return type(self), (self.sequence,)  # so that it can be pickled


class SequencesExhausted(Exception):
    """The log holds the greatest possible sequence, so there is no next one."""

    def __init__(self) -> None:
        super().__init__(f"sequence {SEQUENCE_MAX} is taken and there is none after it; start a new log.")

    def __reduce__(self) -> tuple[type["SequencesExhausted"], tuple[()]]:
        return type(self), ()  # so that it can be pickled


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The mesh and the member that this device is."""

    mesh: str
    member: str


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The destination of a blob, and its client_message_id, which is minted if none is given.

    The other fields are for messages only: what the envelope says, and the request as its caller made it.
    """

    destination_kind: str | None = None
    destination_ref: str | None = None
    mesh: str | None = None
    client_message_id: str | None = None
    priority: Priority = Priority.NEXT
    reply_to: str | None = None
    mentions: tuple[str, ...] = ()
    expires_at: int | None = None
    request_fingerprint: bytes | None = None
    request: bytes | None = None


NOWHERE = Address()  # for a log that is used without a relay

_APPENDED = (
    *("sequence", "object_id", "blob", "digest", "status", "enqueued_at", "next_attempt_at", "id", "client_message_id"),
    *("destination_kind", "destination_ref", "priority", "reply_to", "mentions", "expires_at"),
    *("request_fingerprint", "request"),
)


class Entry(msgspec.Struct, frozen=True):
    """One entry of the operation log. Times are microseconds since 1970, UTC."""

    sequence: int
    object_id: bytes
    blob: bytes | None  # None if it was pruned after delivery
    status: str
    enqueued_at: int
    delivered_at: int | None

    @property
    def delivered(self) -> bool:
        """Whether the relay has confirmed the entry."""
        return self.status == Status.DONE


def take_identity(transaction: Transaction, now: int, random: Random) -> None:
    """Give a new log its epoch, and a backup that is opened as a log a new epoch and log id."""
    transaction.run(_SQL["create_device"], {"epoch": random(EPOCH_BYTES)})
    ((_, backup),) = transaction.rows(_SQL["device"])
    if backup:
        renew_epoch(transaction, now, random)


def renew_epoch(transaction: Transaction, now: int, random: Random) -> bytes:
    """Give a log that went back in time a new epoch and a new log id; returns the epoch."""
    epoch = random(EPOCH_BYTES)
    transaction.run(_SQL["renew_epoch"], {"epoch": epoch})
    history.fork(transaction, now, random(LOG_ID_BYTES), epoch)
    return epoch


def mark_backup(transaction: Transaction) -> None:
    transaction.run(_SQL["mark_backup"])


def epoch(transaction: Transaction) -> bytes:
    ((found, _),) = transaction.rows(_SQL["device"])
    return bytes(found)


def append(
    transaction: Transaction,
    now: int,
    random: Random,
    object_id: bytes,
    sequence: int,
    blob: bytes,
    address: Address = NOWHERE,
) -> bool:
    """Write an entry unless it is there already; returns whether it was written."""
    found = transaction.rows(_SQL["object_at"], {"sequence": sequence})
    if not found:
        appending = Appending(transaction, now, random)
        appending.add(sequence, object_id, blob, address)
        appending.write()
        return True
    ((holder,),) = found
    if holder != object_id:
        raise SequenceTaken(sequence)
    return False


class Appending:
    """A batch of entries: each gets its sequence at once, and `write` writes all of them."""

    def __init__(self, transaction: Transaction, now: int, random: Random) -> None:
        self._transaction = transaction
        self._now = now
        self._random = random
        self._greatest = -1  # the greatest sequence in use; -1 until it is first needed
        self._sent: dict[tuple[str, str], int | None] = {}  # the last sequence of each destination that was needed
        self._rows: list[tuple[Value, ...]] = []
        self._drafts: list[Draft] = []

    def next(self, object_id: bytes, blob: bytes, address: Address = NOWHERE) -> int:
        """Add an entry under the next sequence; returns it. The transaction keeps other writers from taking it."""
        if self._greatest < 0:
            self._greatest = next_sequence(self._transaction) - 1
        if self._greatest >= SEQUENCE_MAX:
            raise SequencesExhausted
        self._greatest += 1
        self.add(self._greatest, object_id, blob, address)
        return self._greatest

    def message(self, content: Payload, address: Address) -> int:
        """Add a message under the next sequence, with its destination's previous sequence inside; returns its sequence."""
        destination = address.destination_kind or "", address.destination_ref or ""
        if destination not in self._sent:
            self._sent[destination] = previous_sequence(self._transaction, *destination)
        blob = payload.encode(msgspec.structs.replace(content, previous_sequence=self._sent[destination]))
        self._sent[destination] = sequence = self.next(content.object_id, blob, address)
        return sequence

    def add(self, sequence: int, object_id: bytes, blob: bytes, address: Address) -> None:
        """Add an entry under a sequence that is free."""
        row_id = ulid.mint(self._now, self._random(ulid.RANDOM_BYTES))
        client_message_id = address.client_message_id or row_id
        self._rows.append(
            (
                *(sequence, object_id, blob, blob_digest(sequence, object_id, blob), Status.PENDING.value),
                *(self._now, self._now, row_id, client_message_id, address.destination_kind, address.destination_ref),
                *(address.priority.value, address.reply_to, msgspec.json.encode(address.mentions).decode()),
                *(address.expires_at, address.request_fingerprint, address.request),
            )
        )
        self._drafts.append(
            Draft(
                kind=Kind.ENQUEUED,
                mesh=address.mesh,
                client_message_id=client_message_id,
                epoch=self._epoch,
                sequence=sequence,
                destination_kind=address.destination_kind,
                destination_ref=address.destination_ref,
                size=len(blob),
            )
        )

    @cached_property
    def _epoch(self) -> bytes:
        return epoch(self._transaction)

    def write(self) -> None:
        """Write the rows of all entries, their count, and a history entry for each."""
        if self._rows:
            self._transaction.insert("operation_log", _APPENDED, self._rows)
            self._transaction.run(_SQL["count_appended"], {"count": len(self._rows)})
            history.append(self._transaction, self._now, self._drafts)
            self._rows, self._drafts = [], []


def recount(transaction: Transaction) -> None:
    """Count the operations of each status anew, after rows were written without appending, by a salvage."""
    transaction.run(_SQL["recount"])


def append_next(
    transaction: Transaction, now: int, random: Random, object_id: bytes, blob: bytes, address: Address = NOWHERE
) -> int:
    """Write an entry under the next sequence; returns the sequence."""
    appending = Appending(transaction, now, random)
    sequence = appending.next(object_id, blob, address)
    appending.write()
    return sequence


def append_message(transaction: Transaction, now: int, random: Random, content: Payload, address: Address) -> int:
    """Write a message under the next sequence; returns the sequence."""
    appending = Appending(transaction, now, random)
    sequence = appending.message(content, address)
    appending.write()
    return sequence


def mark_delivered(transaction: Transaction, now: int, object_id: bytes, sequence: int) -> bool:
    """Mark an entry as delivered; returns whether it was in the outbox."""
    confirmed = transaction.rows(_SQL["mark_delivered"], {"sequence": sequence, "object_id": object_id, "now": now})
    if not confirmed:
        return False
    ((client_message_id,),) = confirmed
    draft = Draft(kind=Kind.RELAYED, client_message_id=client_message_id, epoch=epoch(transaction), sequence=sequence)
    history.append(transaction, now, [draft])
    return True


def prune_blobs(transaction: Transaction, through: int) -> int:
    """Drop the blobs of delivered entries up to a sequence; returns how many."""
    pruned = 0
    while some := transaction.run(_SQL["prune_blobs"], {"through": through, "limit": PRUNED_AT_ONCE}):
        pruned += some
    return pruned


def max_sequence(transaction: Transaction) -> int | None:
    ((greatest,),) = transaction.rows(_SQL["max_sequence"])
    return None if greatest is None else int(greatest)


def next_sequence(transaction: Transaction) -> int:
    greatest = max_sequence(transaction)
    return 0 if greatest is None else greatest + 1


def previous_sequence(transaction: Transaction, destination_kind: str, destination_ref: str) -> int | None:
    """The last sequence to a destination, by which its readers notice a hole; sends that were given up do not count."""
    parameters = {"destination_kind": destination_kind, "destination_ref": destination_ref}
    ((greatest,),) = transaction.rows(_SQL["previous_sequence"], parameters)
    return None if greatest is None else int(greatest)


def entries(transaction: Transaction, after: int, limit: int | None) -> list[Entry]:
    return _read(transaction, "entries", {}, after, limit)


def outbox(transaction: Transaction, after: int, limit: int | None) -> list[Entry]:
    return _read(transaction, "outbox", {}, after, limit)


def entries_of_object(transaction: Transaction, object_id: bytes, after: int, limit: int | None) -> list[Entry]:
    return _read(transaction, "entries_of_object", {"object_id": object_id}, after, limit)


def objects_between(transaction: Transaction, first: bytes, last: bytes) -> list[bytes]:
    """Up to two object ids in a range: enough to know whether there is exactly one."""
    return [bytes(found) for (found,) in transaction.rows(_SQL["objects_between"], {"first": first, "last": last})]


def count(transaction: Transaction) -> tuple[int, int]:
    """How many entries there are, and how many of them are in the outbox."""
    ((all_of_them, waiting),) = transaction.rows(_SQL["count"])
    return all_of_them, waiting


def verify(engine: Engine) -> Iterator[Finding]:
    """Every entry is what was written."""
    after = -1
    while True:
        with engine.read() as transaction:
            rows = transaction.rows(_SQL["entries"], {"after": after, "limit": PAGE_ROWS})
        for row in rows:
            try:
                _entry(row, engine.where)
            except faults.Corrupt as fault:
                yield Finding("entries", verify.__doc__ or "", fault.detail)
        if not rows:
            return
        after = rows[-1][0]


def _read(transaction: Transaction, name: str, of: Mapping[str, Value], after: int, limit: int | None) -> list[Entry]:
    page = {**of, "after": after, "limit": SEQUENCE_MAX if limit is None else limit}
    return [_entry(row, transaction.where) for row in transaction.rows(_SQL[name], page)]


def _entry(row: Row, where: str) -> Entry:
    """Read an entry; raises Corrupt if its blob is not what was written."""
    *fields, digest = row
    entry = Entry(*fields)
    try:
        whole = entry.blob is None or blob_digest(entry.sequence, entry.object_id, entry.blob) == digest
    except (TypeError, OverflowError):  # a value that we never write
        whole = False
    if not whole:
        raise faults.Corrupt(where, f"entry {entry.sequence} is not what was written")
    return entry


def blob_digest(sequence: int, object_id: bytes, blob: bytes) -> bytes:
    """The digest that is kept with a blob, to notice a change."""
    return hashlib.sha256(sequence.to_bytes(8, "big") + object_id + blob).digest()
