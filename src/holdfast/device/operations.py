"""What can be done to the operation log inside a transaction; every change of state is told to the history with it."""

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

PRUNED_AT_ONCE = 500  # entries of one statement

PAGE_ROWS = 100
"""How many entries one read transaction of a long walk takes; they may hold a megabyte each."""

SEQUENCE_MAX = 2**63 - 1
"""The greatest sequence a database integer can hold."""


class SequenceTaken(Exception):
    """The sequence belongs to an entry of another object, so this one was not written."""

    def __init__(self, sequence: int) -> None:
        super().__init__(
            f"sequence {sequence} belongs to another object; nothing was written. "
            "Let append_next allocate sequences, or read max_sequence() again."
        )
        self.sequence = sequence

    def __reduce__(self) -> tuple[type["SequenceTaken"], tuple[int]]:
        return type(self), (self.sequence,)  # so that it crosses a process border whole


class SequencesExhausted(Exception):
    """The log holds the greatest sequence there is, so no next one exists."""

    def __init__(self) -> None:
        super().__init__(f"sequence {SEQUENCE_MAX} is taken and there is none after it; start a new log.")

    def __reduce__(self) -> tuple[type["SequencesExhausted"], tuple[()]]:
        return type(self), ()  # likewise


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Who this device is: a member of one mesh."""

    mesh: str
    member: str


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a blob goes through a relay, and the id that it goes under, which is minted if none is given.

    The rest is of messages only: what their envelope says, and the request as its caller made it.
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


NOWHERE = Address()  # of a log that stands alone

_APPENDED = (
    *("sequence", "object_id", "blob", "digest", "status", "enqueued_at", "next_attempt_at", "id", "client_message_id"),
    *("destination_kind", "destination_ref", "priority", "reply_to", "mentions", "expires_at"),
    *("request_fingerprint", "request"),
)


class Entry(msgspec.Struct, frozen=True):
    """One entry of the operation log. Times are microseconds since 1970, UTC."""

    sequence: int
    object_id: bytes
    blob: bytes | None  # None once it was pruned, after delivery
    status: str
    enqueued_at: int
    delivered_at: int | None

    @property
    def delivered(self) -> bool:
        """Whether the relay has confirmed it."""
        return self.status == Status.DONE


def take_identity(transaction: Transaction, now: int, random: Random) -> None:
    """Give a new log an epoch; give a copy that is opened as a log an epoch and a log id of its own."""
    transaction.run(_SQL["create_device"], {"epoch": random(EPOCH_BYTES)})
    ((_, backup),) = transaction.rows(_SQL["device"])
    if backup:
        renew_epoch(transaction, now, random)


def renew_epoch(transaction: Transaction, now: int, random: Random) -> bytes:
    """Let a log that went back in time be another sender's, with a history of its own; says its epoch."""
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
    """Write an entry unless it is there already; says whether it was written."""
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
    """Entries that are on their way into the log: each has its sequence at once, and `write` writes all of them."""

    def __init__(self, transaction: Transaction, now: int, random: Random) -> None:
        self._transaction = transaction
        self._now = now
        self._random = random
        self._greatest = -1  # sequence that is taken, as far as anybody has asked
        self._sent: dict[tuple[str, str], int | None] = {}  # the last sequence of a destination, likewise
        self._rows: list[tuple[Value, ...]] = []
        self._drafts: list[Draft] = []

    def next(self, object_id: bytes, blob: bytes, address: Address = NOWHERE) -> int:
        """An entry under the next sequence, which is safe from every other writer until the commit; says which."""
        if self._greatest < 0:
            self._greatest = next_sequence(self._transaction) - 1
        if self._greatest >= SEQUENCE_MAX:
            raise SequencesExhausted
        self._greatest += 1
        self.add(self._greatest, object_id, blob, address)
        return self._greatest

    def message(self, content: Payload, address: Address) -> int:
        """A message under the next sequence, with the one that its destination got before; says its own."""
        destination = address.destination_kind or "", address.destination_ref or ""
        if destination not in self._sent:
            self._sent[destination] = previous_sequence(self._transaction, *destination)
        blob = payload.encode(msgspec.structs.replace(content, previous_sequence=self._sent[destination]))
        self._sent[destination] = sequence = self.next(content.object_id, blob, address)
        return sequence

    def add(self, sequence: int, object_id: bytes, blob: bytes, address: Address) -> None:
        """An entry under a sequence that nobody has."""
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
        """The rows of all of them, their count, and an entry of the history for each."""
        if self._rows:
            self._transaction.insert("operation_log", _APPENDED, self._rows)
            self._transaction.run(_SQL["count_appended"], {"count": len(self._rows)})
            history.append(self._transaction, self._now, self._drafts)
            self._rows, self._drafts = [], []


def recount(transaction: Transaction) -> None:
    """Count the operations of each status anew, after rows were put there otherwise than by appending."""
    transaction.run(_SQL["recount"])


def append_next(
    transaction: Transaction, now: int, random: Random, object_id: bytes, blob: bytes, address: Address = NOWHERE
) -> int:
    """Write an entry under the next sequence, and say which that is."""
    appending = Appending(transaction, now, random)
    sequence = appending.next(object_id, blob, address)
    appending.write()
    return sequence


def append_message(transaction: Transaction, now: int, random: Random, content: Payload, address: Address) -> int:
    """Write a message under the next sequence, and say which that is."""
    appending = Appending(transaction, now, random)
    sequence = appending.message(content, address)
    appending.write()
    return sequence


def mark_delivered(transaction: Transaction, now: int, object_id: bytes, sequence: int) -> bool:
    """Take an entry out of the outbox; says whether it was there."""
    confirmed = transaction.rows(_SQL["mark_delivered"], {"sequence": sequence, "object_id": object_id, "now": now})
    if not confirmed:
        return False
    ((client_message_id,),) = confirmed
    draft = Draft(kind=Kind.RELAYED, client_message_id=client_message_id, epoch=epoch(transaction), sequence=sequence)
    history.append(transaction, now, [draft])
    return True


def prune_blobs(transaction: Transaction, through: int) -> int:
    """Drop the blobs of delivered entries up to a sequence; says how many."""
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
    """What was sent to a destination last, so that its readers notice a hole; what was given up is left out."""
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
    """Up to two object ids in a range: enough to know whether one is meant."""
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
    """An entry that is what was written: a disk that changed a byte is found out when the byte is read."""
    *fields, digest = row
    entry = Entry(*fields)
    try:
        whole = entry.blob is None or blob_digest(entry.sequence, entry.object_id, entry.blob) == digest
    except (TypeError, OverflowError):  # a column holds what no column of ours can hold
        whole = False
    if not whole:
        raise faults.Corrupt(where, f"entry {entry.sequence} is not what was written")
    return entry


def blob_digest(sequence: int, object_id: bytes, blob: bytes) -> bytes:
    """What shows that a blob is still what was written."""
    return hashlib.sha256(sequence.to_bytes(8, "big") + object_id + blob).digest()
