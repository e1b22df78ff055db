"""The outbox as an operator sees it: what waits, what was given up and why, and which row replaced which.

Also what happens to rows that the sender is done with: a late yes of the relay is kept, and what a restored relay has lost is
put back to be offered again.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.device.forks import Fork, kept_through
from holdfast.device.operations import Facts
from holdfast.device.sending import Attempt, StatusChanged
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.outbox import TRANSITIONS, Signal, Status, counts
from holdfast.protocol.schedule import DAY
from holdfast.protocol.tables import move
from holdfast.store import history
from holdfast.store.engine import Row, Transaction, Value
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "outbox.sql")

PAGE_ROWS = 50
PAGE_ROWS_MAX = 500
CHAIN_MAX = 100  # rows of a chain of requeues that are shown, in each direction
ROLLED_BACK_MAX = 1_000  # rows that one transaction puts back
RETENTION_DAYS = 30  # of the bytes of what was sent; the rows are kept for ever
PRUNED_MAX = 1_000  # rows that one transaction prunes


class Item(msgspec.Struct, frozen=True):
    """An operation without its bytes."""

    sequence: int
    id: str
    client_message_id: str
    destination_kind: str | None
    destination_ref: str | None
    status: Status
    priority: str
    reply_to: str | None
    mentions: tuple[str, ...]
    expires_at: int | None
    enqueued_at: int
    attempts: int
    next_attempt_at: int
    last_error: str | None
    delivered_at: int | None
    event_id: bytes | None
    epoch: bytes | None
    broker_message_id: str | None
    history_id: int | None
    log_id: bytes | None
    aborted_at: int | None
    aborted_by: str | None
    superseded_by: str | None
    size: int | None  # of the blob, in bytes; None if it was pruned


class Inspection(msgspec.Struct, frozen=True):
    """A row, and the chain of requeues that it belongs to, the oldest first."""

    item: Item
    chain: tuple[Item, ...]


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """The relay's ids of a message that it has."""

    broker_message_id: str
    history_id: int | None = None
    log_id: bytes | None = None  # the log in which `history_id` is a position


class RolledBack(msgspec.Struct, frozen=True):
    """What a restored relay has lost: how many rows were put back, and the sequences whose bytes were pruned."""

    offered: int
    lost: tuple[int, ...]


def page(
    transaction: Transaction,
    *,
    statuses: Sequence[Status] = (),
    destination: tuple[str, str] | None = None,
    after: int = -1,
    limit: int = PAGE_ROWS,
) -> list[Item]:
    """A page of operations by sequence, filtered by statuses and by destination (kind, ref)."""
    kind, ref = destination or (None, None)
    wanted = frozenset(statuses or Status)
    parameters: dict[str, Value] = {
        **{f"is_{status.value}": int(status in wanted) for status in Status},
        "destination_kind": kind,
        "destination_ref": ref,
        "after": after,
        "limit": min(limit, PAGE_ROWS_MAX),
    }
    name = "page" if Status.DONE in wanted else "page_of_undone"
    return [_item(row) for row in transaction.rows(_SQL[name], parameters)]


def count(transaction: Transaction) -> Mapping[Status, int]:
    """How many operations there are of each status."""
    found: dict[str, int] = dict(transaction.rows(_SQL["count_by_status"]))
    return {status: found.get(status.value, 0) for status in Status}


def given_up(transaction: Transaction) -> int:
    """How many dead messages can be requeued. Other dead rows cannot be, and their callers were told."""
    ((found,),) = transaction.rows(_SQL["count_given_up"])
    return int(found)


def find(transaction: Transaction, name: str) -> Item | None:
    """The operation with this id or client_message_id."""
    found = transaction.rows(_SQL["find"], {"name": name})
    return _item(found[0]) if found else None


def inspect(transaction: Transaction, name: str) -> Inspection | None:
    """An operation with its chain of requeues."""
    item = find(transaction, name)
    if item is None:
        return None
    before, after = [item], [item]
    while len(before) < CHAIN_MAX and (found := transaction.rows(_SQL["superseded_by"], {"id": before[0].id})):
        before.insert(0, _item(found[0]))
    while len(after) < CHAIN_MAX and (following := after[-1].superseded_by) is not None:
        after += [_item(row) for row in transaction.rows(_SQL["find"], {"name": following})]
    return Inspection(item, (*before, *after[1:]))


def with_abandoned(transaction: Transaction, log_id: bytes, forks: Sequence[Fork]) -> list[Fork]:
    """The restorations of a relay, and before them a fork at 0 for every log of ours that they do not mention.

    The relay has nothing of such a log: it was restored, went on in that log, and was then restored from an older copy, which
    does not know of the first restoration. `log_id` is the relay's present log.
    """
    known = {log_id, *(fork.log_id for fork in forks)}
    return [*(Fork(found, 0) for found in _logs(transaction) if found not in known), *forks]


def _logs(transaction: Transaction) -> Iterator[bytes]:
    """The relay's logs that hold rows of ours."""
    after = b""
    while found := transaction.rows(_SQL["next_log"], {"after": after}):
        ((log_id,),) = found
        after = bytes(log_id)
        yield after


def roll_back(
    transaction: Transaction, facts: Facts, now: int, forks: Sequence[Fork], limit: int = ROLLED_BACK_MAX
) -> RolledBack:
    """Put rows that a restored relay has lost back into the outbox, with the same bytes; call until none is put back.

    Dead ones stay dead, but no longer count as committed.
    """
    drafts: list[Draft] = []
    dead: list[Draft] = []
    lost: list[int] = []
    for log_id in dict.fromkeys(fork.log_id for fork in forks):
        past = {"log_id": log_id, "kept_through": kept_through(log_id, forks), "limit": limit - len(drafts)}
        taken = transaction.rows(_SQL["roll_back"], {**past, "now": now})
        drafts += [_rolled_back_entry(facts, _item(row)) for row in taken]
        dead += [_rolled_back_entry(facts, _item(row)) for row in transaction.rows(_SQL["roll_back_dead"], past)]
        lost += [sequence for (sequence,) in transaction.rows(_SQL["lost"], past)]
    history.append(transaction, now, sorted([*drafts, *dead], key=lambda draft: draft.sequence or 0))
    return RolledBack(len(drafts), tuple(lost))


def prune(transaction: Transaction, now: int, *, days: int = RETENTION_DAYS, limit: int = PRUNED_MAX) -> int:
    """Drop the bytes of old sends, and of direct messages that were receipted; returns of how many."""
    return transaction.run(_SQL["prune"], {"before": now - days * DAY, "limit": limit})


def keep_yes(
    transaction: Transaction, facts: Facts, now: int, item: Item, signal: Signal, committed: Committed
) -> Status:
    """Keep the relay's ids on a row; returns its status. A row that is done or given up keeps its status."""
    status = move(TRANSITIONS, item.status, signal)
    if item.broker_message_id is not None:
        return status
    parameters: dict[str, Value] = {
        "sequence": item.sequence,
        "was": item.status.value,
        "status": status.value,
        "attempts": item.attempts + counts(item.status, signal),
        "delivered_at": now if status is Status.DONE else None,
        "broker_message_id": committed.broker_message_id,
        "history_id": committed.history_id,
        "log_id": committed.log_id,
    }
    if not transaction.run(_SQL["keep_yes"], parameters):
        raise StatusChanged(item.sequence, item.status)
    relayed = entry(facts, item, Kind.RELAYED, message_id=committed.broker_message_id)
    history.append(transaction, now, [relayed])
    return status


def _rolled_back_entry(facts: Facts, item: Item) -> Draft:
    detail = Attempt(item.attempts, "the relay was restored to a time before it took this").encode()
    kind = Kind.DEAD if item.status is Status.DEAD else Kind.ATTEMPTED
    return entry(facts, item, kind, reason=Signal.ROLLED_BACK.value, detail=detail)


def entry(
    facts: Facts,
    item: Item,
    kind: Kind,
    *,
    message_id: str | None = None,
    reason: str | None = None,
    detail: bytes = b"",
) -> Draft:
    """A history entry about an operation."""
    return Draft(
        kind=kind,
        mesh=facts.mesh,
        message_id=message_id,
        client_message_id=item.client_message_id,
        epoch=item.epoch,
        sequence=item.sequence,
        destination_kind=item.destination_kind,
        destination_ref=item.destination_ref,
        event_id=item.event_id,
        reason=reason,
        detail=detail,
    )


def _item(row: Row) -> Item:
    values = dict(zip(Item.__struct_fields__, row, strict=True))
    values["status"] = Status(values["status"])
    values["mentions"] = msgspec.json.decode(values["mentions"], type=tuple[str, ...])
    return Item(**values)
