"""State that relays on one database share through it: their common key, which connection has a queue, running bootstraps.

Only rows are shared; a relay's memory is about its own connections. It reads here what the others did: soon after a notice
that they wrote, and at regular intervals in any case. It also remembers where the log was: a server that was brought back to
an earlier moment, or replaced by a standby that lacks what was said yes to, would give positions a second meaning.
"""

from collections.abc import Iterable

import msgspec

from holdfast.protocol.action import Action, RevokeMember, RotateMemberKey, read_action
from holdfast.protocol.refusal import Refused
from holdfast.relay.feed import Bootstrap
from holdfast.store import faults, history
from holdfast.store.engine import Engine, Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "neighbours.sql")


class OtherRelay(faults.Fault):
    what = "this database belongs to a relay with another key"
    remedy = (
        "Copy relay.key and operator.key from the data directory of a relay that runs on it, or name another database."
    )


class WentBack(faults.Fault):
    what = "this database was brought back to an earlier moment, or goes on as another log, while a relay ran on it"
    remedy = "Stop all relays on it, run `holdfast relay fork` unless that was done since, and start them again."
    fatal = True


class Reached(msgspec.Struct, frozen=True, order=True):
    """A position that the log has reached, durably, and the chain there."""

    seq: int
    log_id: bytes
    chain: bytes


class Seen(msgspec.Struct, frozen=True):
    """How far a relay has read what others wrote: a position of the history, and the last number of a taken queue."""

    seq: int
    number: int


def claim_key(transaction: Transaction, pubkey: str) -> None:
    """Claim the database for this relay's key; raises OtherRelay if it has another: devices know a relay by its key."""
    transaction.run(_SQL["claim_key"], {"pubkey": pubkey})
    _check_key(transaction, pubkey)


def refuse_other(engine: Engine, pubkey: str) -> None:
    """Raise OtherRelay if the database has another key, before anything is done to it: an upgrade cannot be taken back."""
    with engine.read() as transaction:
        if "relay_key" in transaction.tables():
            _check_key(transaction, pubkey)


def _check_key(transaction: Transaction, pubkey: str) -> None:
    for (found,) in transaction.rows(_SQL["key"]):
        if found != pubkey:
            raise OtherRelay(transaction.where, f"{found}, and this one has {pubkey}")


def go_on(transaction: Transaction, head: history.Head, before: Reached) -> Reached:
    """Where the log is now; raises WentBack unless it goes on from where it was before."""
    if head.log_id == before.log_id and _chain_at(transaction, head, before.seq) in (before.chain, None):
        return Reached(head.seq, head.log_id, head.chain)
    raise WentBack(transaction.where, f"entry {before.seq} of log {before.log_id.hex()} is not in it")


def _chain_at(transaction: Transaction, head: history.Head, seq: int) -> bytes | None:
    """The chain at a position; empty if it is still to come, None if it was pruned."""
    if seq >= head.seq:
        return head.chain if seq == head.seq else b""
    return history.chain_at(transaction, seq)


def take_queue(transaction: Transaction, mesh: str, member: str) -> int:
    """Give a member's queue to a new connection, whichever relay the old one is at; returns the number of this taking."""
    number = _last_number(transaction) + 1
    transaction.run(_SQL["take_queue"], {"mesh": mesh, "member": member, "number": number})
    return number


def is_taken(transaction: Transaction, mesh: str, member: str, number: int) -> bool:
    """Whether a later connection has taken the queue since taking `number`."""
    found = transaction.rows(_SQL["taken_by"], {"mesh": mesh, "member": member})
    return bool(found) and found[0][0] > number


def seen(transaction: Transaction) -> Seen:
    """The current positions; what other relays write after them is still to be read."""
    return Seen(history.head(transaction).seq, _last_number(transaction))


def changed_since(transaction: Transaction, before: Seen) -> tuple[Seen, list[tuple[str, str]]]:
    """The current positions, and the (mesh, member) whose right to read may have ended since `before`."""
    now = seen(transaction)
    taken = transaction.rows(_SQL["taken_since"], {"after": before.number}) if now.number > before.number else []
    decided = transaction.rows(_SQL["administered_since"], {"after": before.seq}) if now.seq > before.seq else []
    return now, [*((mesh, member) for mesh, member in taken), *_ended(decided)]


def begin_bootstrap(transaction: Transaction, key: str, bootstrap: Bootstrap) -> None:
    """Tell of a bootstrap, so that what it needs is held back at all relays."""
    transaction.run(_SQL["begin_bootstrap"], {"key": key, **msgspec.structs.asdict(bootstrap)})


def end_bootstraps(transaction: Transaction, keys: Iterable[str]) -> None:
    for key in keys:
        transaction.run(_SQL["end_bootstrap"], {"key": key})


def bootstraps(transaction: Transaction, since: int) -> list[Bootstrap]:
    """The bootstraps that began after that time and are under way, at any relay."""
    transaction.run(_SQL["drop_old_bootstraps"], {"until": since})
    return [Bootstrap(*row) for row in transaction.rows(_SQL["bootstraps_since"], {"after": since})]


def _last_number(transaction: Transaction) -> int:
    return int(transaction.rows(_SQL["last_number"])[0][0] or 0)


def _ended(decided: Iterable[tuple[str, bytes]]) -> list[tuple[str, str]]:
    actions = [(mesh, _read(detail)) for mesh, detail in decided if detail]
    return [(mesh, action.member) for mesh, action in actions if isinstance(action, RevokeMember | RotateMemberKey)]


def _read(detail: bytes) -> Action | None:
    """The action in an entry's detail; None if only a newer relay understands it."""
    try:
        return read_action(detail.decode())
    except Refused:
        return None
