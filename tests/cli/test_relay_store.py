"""`holdfast relay migrate|fork`, and the other commands of an operator, on PostgreSQL."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.relay import moving, neighbours
from holdfast.relay.database import SCHEMA, engine_at, open_relay, open_to_read
from holdfast.relay.identity import Identity
from holdfast.store import history, migrations
from tests.postgres import Server
from tests.relay import scene, store
from tests.relay.queue_client import Friends, ids
from tests.relay.running import RunningRelay, command, started
from tests.terminal import typed


def _holdfast(*arguments: object, code: int = 0) -> Any:
    done = typed(*arguments)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if not code else done.stderr


def _head(where: str) -> history.Head:
    with closing(open_to_read(where)) as engine, engine.read() as transaction:
        return history.head(transaction)


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.database()  # without any tables


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A relay that has run on its file, with something of everything in it."""
    made = tmp_path / "from"
    made.mkdir()
    scene.populated(made / "relay.db")
    Identity.load(made, lambda count: bytes(range(1, count + 1)))
    return made


def test_a_relay_moves_to_postgresql_and_goes_on_there(tmp_path: Path, url: str) -> None:
    relay = started(tmp_path / "relay")
    friends = Friends(relay)
    waited = friends.send(30)
    taken = friends.drain(friends.carol)
    relay.stop()
    before = _head(str(relay.data / "relay.db"))
    moved = _holdfast("relay", "migrate", "--from", relay.data, "--to", url, "--json")
    assert (moved["log_id"], moved["seq"], moved["chain"]) == (before.log_id.hex(), before.seq, before.chain.hex())
    assert moved["rows"]["message"] == 30 + 5
    assert _head(url) == before
    assert _holdfast("check", url, "--json")["ok"] is True
    assert "--store" in _holdfast("relay", "stats", "--data", relay.data, "--json", code=1)
    friends.relay = relay = started(tmp_path / "relay", "--store", url)
    try:
        (again,) = friends.publish(waited[0])
        assert (again["status"], again["duplicate"]) == (200, True)
        waited += friends.send()
        assert ids(friends.drain(friends.bob)) == ids(waited)
        assert taken == []
    finally:
        relay.stop()
    assert _holdfast("check", url, "--json")["ok"] is True


def test_every_row_arrives(data: Path, url: str) -> None:
    before = _rows(str(data / "relay.db"))
    moved = _holdfast("relay", "migrate", "--from", data, "--to", url, "--json")
    after = _rows(url)
    assert after.pop("relay_key")
    del before["relay_key"]
    assert after == before
    assert {name: len(rows) for name, rows in before.items() if rows} == {
        name: count for name, count in moved["rows"].items() if count
    }


def test_rows_are_read_back_once_each(url: str) -> None:
    """A database of millions is compared in a time that grows with its length alone."""
    count = 5_000
    with closing(open_relay(url)) as engine, engine.write() as transaction:
        columns = ["mesh", "member", "blocked", "since"]
        transaction.insert("block", columns, (("m", f"by-{n}", f"of-{n}", 1) for n in range(count)))
        pages = list(moving.read_back(transaction, "block", columns))
        assert len(pages) > 1
        assert len({row for page in pages for row in page}) == sum(map(len, pages)) == count
        through = (
            "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'block'"
        )
        assert transaction.rows(through) == [(count,)]


def test_a_database_that_has_a_history_is_refused_and_left_alone(data: Path, url: str) -> None:
    with closing(open_relay(url)) as engine:
        scene.append(engine, 3)
    before = _rows(url)
    assert "history in this database" in _holdfast("relay", "migrate", "--from", data, "--to", url, code=4)
    assert _rows(url) == before
    assert (data / "relay.db").exists()


def test_a_broken_file_is_not_moved(data: Path, url: str) -> None:
    with closing(open_relay(data / "relay.db")) as engine, engine.write() as transaction:
        transaction.run("UPDATE history SET reason = 'another' WHERE seq = 4")
    assert "chain" in _holdfast("relay", "migrate", "--from", data, "--to", url, code=4)
    assert _head(url).seq == 0
    assert (data / "relay.db").exists()


def test_a_move_that_was_interrupted_before_the_file_got_its_name_is_finished(data: Path, url: str) -> None:
    first = _holdfast("relay", "migrate", "--from", data, "--to", url, "--json")
    (data / "relay.db.moved").rename(data / "relay.db")
    before = _rows(url)
    assert _holdfast("relay", "migrate", "--from", data, "--to", url, "--json") == first
    assert _rows(url) == before
    assert not (data / "relay.db").exists()


@pytest.fixture
def running(tmp_path: Path, postgres: Server) -> Iterator[tuple[RunningRelay, str]]:
    url = store.database(postgres)
    relay = started(tmp_path / "relay", "--store", url)
    yield relay, url
    if relay.process.poll() is None:
        relay.stop()


def test_operators_look_at_a_relay_on_postgresql(running: tuple[RunningRelay, str], data: Path) -> None:
    relay, url = running
    friends = Friends(relay)
    friends.send(3)
    where = ("--data", relay.data, "--store", url, "--json")
    (waiting,) = _holdfast("relay", "queues", *where)["queues"]
    assert (waiting["member"], waiting["messages"]) == (friends.bob.member, 3)
    assert _holdfast("relay", "stats", *where)["deliveries_open"] == 3
    assert _holdfast("check", url, "--json")["ok"] is True
    assert "is running" in _holdfast("relay", "fork", *where, code=5)
    assert "is running" in _holdfast("relay", "migrate", "--from", data, "--to", url, code=5)
    (relay.data / "relay.toml").write_text(f'store = "{url}"\n')
    assert _holdfast("relay", "stats", "--data", relay.data, "--json")["deliveries_open"] == 3
    assert "PostgreSQL" in _holdfast("relay", "backup", "--data", relay.data, relay.data / "copy", code=2)


def test_a_database_that_was_brought_back_goes_on_under_a_new_log_id(running: tuple[RunningRelay, str]) -> None:
    relay, url = running
    friends = Friends(relay)
    (kept,) = friends.send()
    relay.stop()
    before = _head(url)
    forked = _holdfast("relay", "fork", "--data", relay.data, "--store", url, "--json")
    assert forked["seq"] == before.seq + 1
    assert forked["log_id"] == _head(url).log_id.hex() != before.log_id.hex()
    friends.relay = again = started(relay.data, "--store", url)
    try:
        assert ids(friends.drain(friends.bob)) == [kept.id]
    finally:
        again.stop()
    assert _holdfast("check", url, "--json")["ok"] is True


def _of_another_relay(url: str) -> None:
    """The database of another relay, of a version before this one."""
    older = msgspec.structs.replace(SCHEMA, migrations=SCHEMA.migrations[:-1])
    with closing(engine_at(url)) as engine:
        migrations.migrate(engine, older, lambda: 0)
        with engine.write() as transaction:
            history.create(transaction, bytes(16))
            neighbours.claim_key(transaction, "f" * 64)


@pytest.mark.parametrize("name", ["fork", "migrate", "run"])
def test_the_database_of_another_relay_is_not_even_upgraded(data: Path, url: str, name: str) -> None:
    _of_another_relay(url)
    before = _everything(url)
    arguments = {
        "fork": ("--data", data, "--store", url),
        "migrate": ("--from", data, "--to", url),
        "run": ("--data", data, "--store", url, "--port", 0),
    }
    assert "another key" in _holdfast("relay", name, *arguments[name], code=1)
    assert _everything(url) == before


def test_a_database_without_a_relay_is_not_forked(data: Path, url: str) -> None:
    assert "it is empty" in _holdfast("relay", "fork", "--data", data, "--store", url, code=1)
    assert _everything(url) == {}


def _everything(where: str) -> dict[str, list[str]]:
    with closing(engine_at(where, read_only=True)) as engine, engine.read() as transaction:
        return {table: sorted(map(repr, transaction.rows(f"SELECT * FROM {table}"))) for table in transaction.tables()}


def test_a_store_that_is_no_url_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path / "relay", "--store", "mysql://x"), capture_output=True, text=True)
    assert (done.returncode, "postgresql://" in done.stderr) == (2, True)


def _rows(where: str) -> dict[str, list[str]]:
    with closing(open_to_read(where)) as engine, engine.read() as transaction:
        tables = sorted(transaction.tables() - {"holdfast_migration"})
        return {table: sorted(map(str, transaction.rows(f"SELECT * FROM {table}"))) for table in tables}
