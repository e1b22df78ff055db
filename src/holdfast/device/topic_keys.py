"""The keys of topics that this device holds, and who else is known to hold them. No key is ever thrown away."""

from collections.abc import Iterable

from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "topic_key.sql")


def keep_made(transaction: Transaction, now: int, topic: str, key_epoch: int, key: bytes) -> None:
    """Keep a key that was made here, before anybody is granted it."""
    transaction.run(_SQL["keep_made"], {"topic": topic, "key_epoch": key_epoch, "key": key, "now": now})


def keep_granted(transaction: Transaction, now: int, topic: str, key_epoch: int, key: bytes) -> bool:
    """Keep a key that was granted to this device; says whether that is news."""
    return bool(transaction.run(_SQL["keep_granted"], {"topic": topic, "key_epoch": key_epoch, "key": key, "now": now}))


def in_force(transaction: Transaction, topic: str, key_epoch: int) -> bytes | None:
    """The key to seal with in this epoch: the one granted last."""
    found = transaction.rows(_SQL["key_in_force"], {"topic": topic, "key_epoch": key_epoch})
    return bytes(found[0][0]) if found else None


def of_epoch(transaction: Transaction, topic: str, key_epoch: int) -> list[bytes]:
    """Every key that may open what was sealed in this epoch, the likeliest first."""
    found = transaction.rows(_SQL["keys_of_epoch"], {"topic": topic, "key_epoch": key_epoch})
    return [bytes(key) for (key,) in found]


def note_holders(transaction: Transaction, topic: str, key_epoch: int, members: Iterable[str]) -> None:
    """Remember that these members hold the key of an epoch, or are about to."""
    for member in members:
        transaction.run(_SQL["note_holder"], {"topic": topic, "key_epoch": key_epoch, "member": member})


def forget_holders(transaction: Transaction, topic: str, key_epoch: int) -> None:
    """Nobody holds the key of this epoch any more: it was never in force, and another takes its place."""
    transaction.run(_SQL["forget_holders"], {"topic": topic, "key_epoch": key_epoch})


def holders(transaction: Transaction, topic: str, key_epoch: int) -> set[str]:
    """Who is known to hold the key of an epoch."""
    found = transaction.rows(_SQL["holders"], {"topic": topic, "key_epoch": key_epoch})
    return {member for (member,) in found}
