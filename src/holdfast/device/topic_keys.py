"""The keys of topics that this device holds. No key is ever thrown away."""

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


def count(transaction: Transaction) -> tuple[int, int]:
    """How many keys are here, and how many of them were granted; neither number ever falls."""
    ((all_of_them, granted),) = transaction.rows(_SQL["count_keys"])
    return int(all_of_them), int(granted)
