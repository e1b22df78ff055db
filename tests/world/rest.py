"""Whether everything has come to its end: nothing waits anywhere, and everybody has the documents that relays have."""

from typing import TYPE_CHECKING

from holdfast.store.engine import Row, Transaction
from tests.world.machine import HomeMachine, RelayMachine

if TYPE_CHECKING:
    from tests.world.world import World


def waiting(world: "World") -> dict[str, int]:
    """How much has not come to its end, by what and where."""
    found: dict[str, int] = {}
    here = [home for home in world.homes.values() if home.ended is None and home.is_up and home.daemon is not None]
    for home in here:
        found[home.name] = _outbox(world, home)
        found[f"hooks of {home.name}"] = 0 if home.hooks is None else home.hooks.waiting
    for relay in world.relays.values():
        if not relay.is_up or relay.relay is None:
            found[f"{relay.name} is down"] = 1
            continue
        with relay.relay._engine.read() as transaction:
            queued = transaction.rows("SELECT name FROM delivery NATURAL JOIN member WHERE state = 'open'")
            found[relay.name] = sum(world.homes[name].ended is None for (name,) in queued)
            current = _by_author(transaction)
        for home in here:
            if relay in home.followed:
                found[f"documents of {home.name} at {relay.name}"] = _differing(home, current)
    return found


def _outbox(world: "World", home: HomeMachine) -> int:
    assert home.daemon is not None
    forgotten = _forgotten(world, home.relay)
    rows = home.daemon.device.look(
        lambda tx: tx.rows(
            "SELECT destination_ref, count(*) FROM operation_log"
            " WHERE status IN ('pending', 'inflight') GROUP BY destination_ref UNION ALL"
            " SELECT destination_ref, count(*) FROM scheduled_send"
            " WHERE released_at IS NULL AND cancelled_at IS NULL GROUP BY destination_ref"
        )
    )
    return sum(count for ref, count in rows if ref not in forgotten)


def _forgotten(world: "World", relay: RelayMachine) -> set[str]:
    """Members who are out, of which a relay that went back in time knows nothing: their queues get full, and stay so."""
    is_restored = any(one.machine == relay.name for one in world.journal.restored)
    if not is_restored or not relay.is_up or relay.relay is None:
        return set()
    with relay.relay._engine.read() as transaction:
        members = transaction.rows("SELECT member, name FROM member WHERE status = 'active'")
    return {member for member, name in members if world.homes[name].ended is not None}


def _by_author(transaction: Transaction) -> dict[str, set[Row]]:
    found: dict[str, set[Row]] = {}
    for author, event_id in transaction.rows("SELECT author, event_id FROM snapshot WHERE superseded_seq IS NULL"):
        found.setdefault(author, set()).add((event_id,))
    return found


def _differing(home: HomeMachine, current: dict[str, set[Row]]) -> int:
    assert home.daemon is not None
    ((author,),), own = home.daemon.device.look(
        lambda tx: (
            tx.rows("SELECT pubkey FROM author"),
            tx.rows("SELECT event_id FROM snapshot WHERE status = 'current'"),
        )
    )
    return len(current.get(author, set()) ^ set(own))
