"""A store from before deliveries lay in the order of queues: its rows are all there, and expire when they should."""

from pathlib import Path

from holdfast.relay import closing, queue
from holdfast.relay.database import SCHEMA, prepare
from holdfast.store import migrations
from holdfast.store.engine import Engine
from holdfast.store.migrations import Schema
from tests.relay import store

_BEFORE = [migration.name for migration in SCHEMA.migrations].index("delivery")
_NOW = 1_000
_MEMBER = """
INSERT INTO member (mesh, member, name, role, status, joined_at, queue_count)
VALUES ('m', 'bob', 'bob', 'member', 'active', 1, 2)
"""
_DELIVERIES = """
INSERT INTO delivery (mesh, member, seq, message_id, state, expires_at, closed_at, was_stored, is_receipt, receipted_at)
VALUES ('m', 'bob', 3, 'c', 'open', 2000, NULL, NULL, 0, NULL), ('m', 'bob', 1, 'a', 'delivered', 500, 400, 1, 0, 450),
       ('m', 'bob', 2, 'b', 'open', 500, NULL, NULL, 0, NULL), ('m', 'bob', 4, 'd', 'open', 2000, NULL, NULL, 1, NULL)
"""


def _old(engine: Engine) -> None:
    engine.prepare()
    migrations.migrate(engine, Schema(program="relay", migrations=SCHEMA.migrations[:_BEFORE]), lambda: _NOW)
    with engine.write() as transaction:
        transaction.run(_MEMBER)
        transaction.run(_DELIVERIES)


def test_deliveries_of_an_older_store_keep_their_place_and_their_time(tmp_path: Path, on_store: str) -> None:
    engine = store.engine(tmp_path / "relay.db")
    _old(engine)
    with engine.read() as transaction:
        before = transaction.rows("SELECT * FROM delivery ORDER BY seq")
    prepare(engine, lambda: _NOW, bytes)
    with engine.write() as transaction:
        assert transaction.rows("SELECT * FROM delivery ORDER BY seq") == before
        assert closing.expire(transaction, _NOW, 10) == {("m", "bob"): 1}
        assert [one.seq for one in queue.waiting(transaction, _NOW, "m", "bob", 0, 50).messages] == [3, 4]
        assert transaction.rows("SELECT expires_from FROM member") == [(2000,)]
    engine.close()
