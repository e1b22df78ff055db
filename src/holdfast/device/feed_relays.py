"""The relays that keep an author's documents, inside a transaction: the position of each, and what each has and lacks.

A relay's position moves in the transaction that stores what came up to there, so it is never ahead of the disk. What a relay
lacks is written to the operation log, and is offered only after everything that the relay has was looked at.
"""

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.device import author as authors
from holdfast.device import feed_documents, operations, sending
from holdfast.device.author import Author
from holdfast.device.feed_documents import FEED, Arrived, Edited, Writer
from holdfast.device.lanes import WAIT_MAX
from holdfast.device.operations import Address
from holdfast.device.sending import Operation
from holdfast.protocol import ulid
from holdfast.protocol.outbox import Status
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.schedule import SECOND
from holdfast.protocol.snapshot import Standing
from holdfast.store.engine import Transaction, Value
from holdfast.store.statements import Statements
from holdfast.store.world import Random
from holdfast.wire.client import Said

_SQL = Statements(__package__, "feed_relays.sql")

OFFERED_AT_ONCE = 50  # snapshots in one request
OFFERED_BYTES_MAX = 524_288  # of snapshots in one request, if it has more than one
STAGED_AT_ONCE = 500  # snapshots of a relay's state that are read together

_FIRST = b""


class FeedRelay(msgspec.Struct, frozen=True):
    """A relay and the position up to which it was followed; `seq` is None if its state has to be fetched first."""

    relay: str
    pubkey: str | None
    is_home: int
    log_id: bytes | None
    seq: int | None


class Answered(msgspec.Struct, frozen=True):
    """A relay's answer to an offered snapshot, and how the snapshot stands to the versions that the relay has."""

    said: Said
    standing: Standing | None = None


def load(transaction: Transaction) -> list[FeedRelay]:
    """All relays, this home's own first."""
    return [FeedRelay(*row) for row in transaction.rows(_SQL["relays"])]


def find(transaction: Transaction, relay: str) -> FeedRelay:
    (found,) = (one for one in load(transaction) if one.relay == relay)
    return found


def add(transaction: Transaction, now: int, relay: str, pubkey: str | None = None, *, is_home: bool = False) -> bool:
    """Follow one more relay; returns whether it is new."""
    is_new = transaction.run(_SQL["add_relay"], {"relay": relay, "pubkey": pubkey, "is_home": int(is_home), "now": now})
    if is_home:
        transaction.run(_SQL["move_home"], {"relay": relay})
    return bool(is_new)


def recognise(transaction: Transaction, relay: str, pubkey: str) -> None:
    """Note the first key that a relay shows; from then on it must show that one."""
    transaction.run(_SQL["recognise"], {"relay": relay, "pubkey": pubkey})


def start_over(transaction: Transaction, relay: str) -> None:
    """Forget a relay's position and what it had, so that its state is fetched anew."""
    transaction.run(_SQL["forget_checkpoint"], {"relay": relay})
    transaction.run(_SQL["forget_sightings"], {"relay": relay})
    transaction.run(_SQL["unstage"], {"relay": relay})


def unstage(transaction: Transaction, relay: str) -> None:
    """Drop a relay's staged state, which was not fetched to its end."""
    transaction.run(_SQL["unstage"], {"relay": relay})


def stage(transaction: Transaction, relay: str, arrived: Iterable[Arrived]) -> None:
    """Stage a part of a relay's state until it is complete."""
    for one in arrived:
        transaction.run(_SQL["stage"], {"relay": relay, "event_id": one.event_id, "event": one.raw})


def take_state(
    transaction: Transaction, now: int, random: Random, author: Author, relay: str, log_id: bytes, seq: int
) -> int:
    """Apply a relay's staged state at a position, and offer what it lacks; returns how many snapshots were news."""
    transaction.run(_SQL["forget_sightings"], {"relay": relay})
    # The state may be older than our position: the relay may have lost something.
    transaction.run(_SQL["forget_checkpoint"], {"relay": relay})
    news, after = 0, _FIRST
    while page := transaction.rows(_SQL["staged"], {"relay": relay, "after": after, "limit": STAGED_AT_ONCE}):
        arrived = [feed_documents.read_kept(raw) for _, raw in page]
        news += _apply(transaction, now, random, author, relay, arrived)
        after = page[-1][0]
    unstage(transaction, relay)
    _move(transaction, now, author, relay, log_id, seq)
    offer_all_lacking(transaction, now, random, relay)
    return news


def offer_all_lacking(transaction: Transaction, now: int, random: Random, relay: str) -> None:
    """Enqueue for a relay every current snapshot that it is not known to have.

    A home that was recovered from a damaged file may have lost its queue for the relay, or what it knew of the relay.
    """
    ((offered,),) = transaction.rows(_SQL["count_offered"], {"relay": relay})
    if offered > count_waiting(transaction, relay):
        transaction.run(_SQL["forget_offers"], {"relay": relay})
    after = 0
    while page := transaction.rows(_SQL["lacking"], {"relay": relay, "after": after, "limit": STAGED_AT_ONCE}):
        for after, event_id, d, raw in page:  # noqa: B007 - the last number is where the next page begins
            offer(transaction, now, random, relay, Edited(event_id, d, raw))


def follow(
    transaction: Transaction,
    now: int,
    random: Random,
    author: Author,
    relay: str,
    log_id: bytes,
    seq: int,
    arrived: Sequence[Arrived],
) -> int:
    """Apply what a relay brought up to a position, and move there; returns how many snapshots were news."""
    news = _apply(transaction, now, random, author, relay, arrived)
    _move(transaction, now, author, relay, log_id, seq)
    return news


def offer(transaction: Transaction, now: int, random: Random, relay: str, edited: Edited) -> None:
    """Enqueue a snapshot for a relay."""
    assert edited.event is not None  # noqa: S101 - nothing is offered that does not exist
    transaction.run(_SQL["offer"], {"relay": relay, "event_id": edited.event_id})
    address = Address(
        destination_kind=FEED,
        destination_ref=relay,
        client_message_id=ulid.mint(now, random(ulid.RANDOM_BYTES)),
    )
    object_id = feed_documents.object_id(edited.d)
    operations.append_next(transaction, now, random, object_id, edited.event, address)


def offer_to_all(transaction: Transaction, now: int, random: Random, edited: Edited) -> None:
    """Enqueue an edit for every relay."""
    if edited.event is not None:
        for one in load(transaction):
            offer(transaction, now, random, one.relay, edited)


def waiting(transaction: Transaction, relay: str, now: int) -> tuple[list[int], int | None]:
    """The sequences to offer next, in order; if none is due now, the time when one will be."""
    due: dict[str, Value] = {"relay": relay, "now": now, "wait_max": WAIT_MAX, "limit": OFFERED_AT_ONCE}
    sequences: list[int] = []
    size = 0
    for sequence, length in transaction.rows(_SQL["waiting"], due):
        size += length
        if sequences and size > OFFERED_BYTES_MAX:
            break
        sequences.append(sequence)
    if sequences:  # the other rows are not read: weeks of edits may wait
        return sequences, None
    ((next_at,),) = transaction.rows(_SQL["next_attempt_at"], {"relay": relay})
    return [], next_at


def count_refused(transaction: Transaction, relay: str) -> int:
    """How many current versions a relay has permanently refused."""
    return int(transaction.rows(_SQL["count_refused"], {"relay": relay})[0][0])


def count_waiting(transaction: Transaction, relay: str) -> int:
    return int(transaction.rows(_SQL["count_waiting"], {"relay": relay})[0][0])


def claim(transaction: Transaction, now: int, sequences: Sequence[int]) -> list[Operation]:
    """Claim snapshots for an attempt; they were signed when they were made, so their blob is the event to send."""
    found = sending.with_sequences(transaction, sequences)
    ready = [operation for operation in found if operation.status is Status.PENDING]
    return sending.claim_all(transaction, now, [(operation, operation.blob or b"") for operation in ready])


def go_on_as_another(transaction: Transaction, now: int, random: Random, device: str) -> bytes:
    """Take a new epoch, because a relay shows that this home went back in time; returns it.

    Edits made since are signed anew: they carry counters of edits that this home lost, and would be mistaken for those. They
    are among those that some relay does not have, and no other relay will show it again: in the new epoch none is ahead.
    """
    epoch = operations.renew_epoch(transaction, now, random)
    author = authors.load(transaction)
    if author is not None:
        for event_id in feed_documents.unsent(transaction):
            edited = feed_documents.sign_anew(transaction, now, random, Writer(author, device), event_id)
            if edited is not None:
                offer_to_all(transaction, now, random, edited)
    return epoch


def date_anew(
    transaction: Transaction, now: int, random: Random, writer: Writer, pairs: Sequence[tuple[Operation, Answered]]
) -> int:
    """Sign edits anew that a wrong clock dated ahead, once the clock is right; returns how many."""
    count = 0
    for operation, answered in pairs:
        kept = feed_documents.read_kept(operation.blob or b"")
        if answered.said.says is Refusal.CLOCK_AHEAD and kept.said.created_at > now // SECOND:
            edited = feed_documents.sign_anew(transaction, now, random, writer, kept.event_id)
            if edited is not None:
                offer_to_all(transaction, now, random, edited)
                count += 1
    return count


def take_back(transaction: Transaction, now: int, relay: str) -> int:
    """Put back what was in flight to a relay when the connection or the process ended; returns how many."""
    rows = transaction.rows(_SQL["in_flight"], {"relay": relay, "limit": OFFERED_AT_ONCE})
    claimed = sending.with_sequences(transaction, [sequence for (sequence,) in rows])
    return len(sending.restart_all(transaction, now, claimed))


def settle(
    transaction: Transaction,
    now: int,
    random: Random,
    author: Author,
    relay: str,
    pairs: Sequence[tuple[Operation, Answered]],
) -> list[Operation]:
    """Settle offered snapshots by the relay's answers."""
    settled = sending.settle_all(transaction, now, random, [(operation, one.said) for operation, one in pairs])
    for operation, (_, answered) in zip(settled, pairs, strict=True):
        event_id = feed_documents.read_kept(operation.blob or b"").event_id
        if operation.status is Status.DONE:
            is_dominated = answered.standing is Standing.DOMINATED
            seq = None if answered.said.yes is None else answered.said.yes.history_id
            state = "dominated" if is_dominated and seq is not None else "there"
            _note(transaction, relay, event_id, state, seq if state == "dominated" else None)
        elif operation.status is Status.DEAD:
            _note(transaction, relay, event_id, "refused", None)
    checkpoint = find(transaction, relay).seq
    if checkpoint is not None:
        _give_up(transaction, now, author, relay, checkpoint)
    return settled


def _apply(
    transaction: Transaction, now: int, random: Random, author: Author, relay: str, arrived: Sequence[Arrived]
) -> int:
    rulings = feed_documents.apply(transaction, now, author, arrived)
    for one in arrived:
        transaction.run(_SQL["see"], {"relay": relay, "event_id": one.event_id})
    changed = [one.said.d for one, ruling in zip(arrived, rulings, strict=True) if ruling is not None]
    for other in load(transaction):
        if other.seq is not None:
            _offer_lacking(transaction, now, random, other.relay, changed)
    return len(changed)


def _offer_lacking(transaction: Transaction, now: int, random: Random, relay: str, documents: Iterable[str]) -> None:
    """Enqueue for a relay the current versions of these documents that it is not known to have."""
    for d in dict.fromkeys(documents):
        for event_id, _, raw in transaction.rows(_SQL["lacking_of_document"], {"relay": relay, "d": d}):
            offer(transaction, now, random, relay, Edited(event_id, d, raw))


def _move(transaction: Transaction, now: int, author: Author, relay: str, log_id: bytes, seq: int) -> None:
    transaction.run(_SQL["checkpoint"], {"relay": relay, "log_id": log_id, "seq": seq})
    _give_up(transaction, now, author, relay, seq)


def _give_up(transaction: Transaction, now: int, author: Author, relay: str, seq: int) -> None:
    """Give up versions still current here that a relay called dominated: it can no longer bring what dominates them."""
    for event_id, at in transaction.rows(_SQL["dominated"], {"relay": relay, "seq": seq}):
        _note(transaction, relay, event_id, "there", None)
        feed_documents.give_up(transaction, now, author, event_id, at)


def _note(transaction: Transaction, relay: str, event_id: bytes, state: str, seq: int | None) -> None:
    transaction.run(_SQL["answered"], {"relay": relay, "event_id": event_id, "state": state, "seq": seq})
