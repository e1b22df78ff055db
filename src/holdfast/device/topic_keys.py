"""The topic keys that this device holds. No key is ever deleted."""

from holdfast.protocol import topic_key
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

_SQL = Statements(__package__, "topic_key.sql")


def keep_made(transaction: Transaction, now: int, topic: str, key_epoch: int, key: bytes) -> None:
    """Keep a key that was made here, before it is granted to anybody."""
    transaction.run(_SQL["keep_made"], {"topic": topic, "key_epoch": key_epoch, "key": key, "now": now})


def keep_granted(transaction: Transaction, now: int, topic: str, key_epoch: int, key: bytes) -> bool:
    """Keep a key that was granted to this device; returns whether it is new."""
    return bool(transaction.run(_SQL["keep_granted"], {"topic": topic, "key_epoch": key_epoch, "key": key, "now": now}))


def in_force(transaction: Transaction, mesh: str, topic: str, key_epoch: int, key_id: str | None) -> bytes | None:
    """The key to seal with in this key epoch: the one with this id, or the one granted last if the relay tells no id."""
    if key_id is not None:
        keys = of_epoch(transaction, topic, key_epoch)
        return next((key for key in keys if topic_key.key_id(mesh, topic, key_epoch, key) == key_id), None)
    found = transaction.rows(_SQL["key_in_force"], {"topic": topic, "key_epoch": key_epoch})
    return bytes(found[0][0]) if found else None


def of_epoch(transaction: Transaction, topic: str, key_epoch: int) -> list[bytes]:
    """Every key that may open what was sealed in this key epoch, the likeliest first."""
    found = transaction.rows(_SQL["keys_of_epoch"], {"topic": topic, "key_epoch": key_epoch})
    return [bytes(key) for (key,) in found]


def count(transaction: Transaction) -> tuple[int, int]:
    """The number of keys, and of granted ones among them; neither ever falls."""
    ((all_of_them, granted),) = transaction.rows(_SQL["count_keys"])
    return int(all_of_them), int(granted)
