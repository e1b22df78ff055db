"""What relays on one database tell each other through it: whose key they share, who took a queue, who is being handed the state.

Only rows are shared. Whatever a relay keeps in its own memory it keeps for its own connections, and looks here for what the
others did: soon after they say that they wrote, and once a moment whether they say so or not.
"""

from collections.abc import Iterable

import msgspec

from holdfast.protocol.action import Action, RevokeMember, RotateMemberKey, read_action
from holdfast.protocol.refusal import Refused
from holdfast.store import faults, history
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "neighbours.sql")


class OtherRelay(faults.Fault):
    what = "this database belongs to a relay with another key"
    remedy = (
        "Copy relay.key and operator.key from the data directory of a relay that runs on it, or name another database."
    )


class Seen(msgspec.Struct, frozen=True):
    """How far a relay has looked: at the history, and at who took which queue."""

    seq: int
    number: int


def claim_key(transaction: Transaction, pubkey: str) -> None:
    """Make the database this relay's, or refuse: devices know a relay by its key, and would turn away from another."""
    transaction.run(_SQL["claim_key"], {"pubkey": pubkey})
    ((found,),) = transaction.rows(_SQL["key"])
    if found != pubkey:
        raise OtherRelay(transaction.where, f"{found}, and this one has {pubkey}")


def take_queue(transaction: Transaction, mesh: str, member: str) -> int:
    """Let a new connection have a member's queue, wherever the one before it is; says by which number it has it."""
    number = _last_number(transaction) + 1
    transaction.run(_SQL["take_queue"], {"mesh": mesh, "member": member, "number": number})
    return number


def is_taken(transaction: Transaction, mesh: str, member: str, number: int) -> bool:
    """Whether a connection that came later has the queue."""
    found = transaction.rows(_SQL["taken_by"], {"mesh": mesh, "member": member})
    return bool(found) and found[0][0] > number


def seen(transaction: Transaction) -> Seen:
    """How far there is to look."""
    return Seen(history.head(transaction).seq, _last_number(transaction))


def changed_since(transaction: Transaction, before: Seen) -> tuple[Seen, list[tuple[str, str]]]:
    """How far there is to look now, and which members must look whether they may read on."""
    now = seen(transaction)
    taken = transaction.rows(_SQL["taken_since"], {"after": before.number}) if now.number > before.number else []
    decided = transaction.rows(_SQL["administered_since"], {"after": before.seq}) if now.seq > before.seq else []
    return now, [*((mesh, member) for mesh, member in taken), *_ended(decided)]


def begin_bootstrap(transaction: Transaction, key: str, began_at: int) -> int:
    """Hold back compaction for one who is handed the state; says at which position that is."""
    transaction.run(_SQL["begin_bootstrap"], {"key": key, "began_at": began_at})
    return history.head(transaction).seq


def end_bootstraps(transaction: Transaction, keys: Iterable[str]) -> None:
    for key in keys:
        transaction.run(_SQL["end_bootstrap"], {"key": key})


def is_bootstrapping(transaction: Transaction, since: int) -> bool:
    """Whether somebody who began after that time is being handed the state, at whichever relay."""
    transaction.run(_SQL["drop_old_bootstraps"], {"until": since})
    ((count,),) = transaction.rows(_SQL["bootstraps_since"], {"after": since})
    return bool(count)


def _last_number(transaction: Transaction) -> int:
    return int(transaction.rows(_SQL["last_number"])[0][0] or 0)


def _ended(decided: Iterable[tuple[str, bytes]]) -> list[tuple[str, str]]:
    actions = [(mesh, _read(detail)) for mesh, detail in decided if detail]
    return [(mesh, action.member) for mesh, action in actions if isinstance(action, RevokeMember | RotateMemberKey)]


def _read(detail: bytes) -> Action | None:
    """An action that another relay carried out; None of one that only a newer relay knows."""
    try:
        return read_action(detail.decode())
    except Refused:
        return None
