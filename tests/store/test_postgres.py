"""What is PostgreSQL's own: that it keeps its word, that a writer who stalls stops no other, that order is that of commit."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.relay import database as relay
from holdfast.store import address, faults, postgres_session, postgres_watch
from holdfast.store.engine import ConstraintViolated, Engine, Transaction, Value
from holdfast.store.postgres import PostgresEngine
from holdfast.store.writer import Writer
from tests.postgres import Server, running_server
from tests.store.test_statements import FILES, explained

WAIT_S = 60.0  # for what must come
DATABASE = "own"
CONSOLE = ("console", "relay.sql")  # its pages are read from the relay's database


@pytest.fixture
def url(postgres: Server) -> str:
    url = postgres.url(postgres.template(DATABASE, lambda url: None))
    postgres.run("DROP SCHEMA public CASCADE; CREATE SCHEMA public; CREATE TABLE thing (id bigint)", DATABASE)
    return url


@pytest.fixture
def engines(url: str) -> Iterator[tuple[PostgresEngine, PostgresEngine]]:
    with closing(PostgresEngine(url)) as first, closing(PostgresEngine(url)) as second:
        yield first, second


def _ids(engine: Engine) -> list[int]:
    with engine.read() as transaction:
        return [number for (number,) in transaction.rows("SELECT id FROM thing ORDER BY id")]


def _insert(engine: Engine, number: int) -> None:
    with engine.write() as transaction:
        transaction.run("INSERT INTO thing VALUES (:id)", {"id": number})


def _insert_next(engine: Engine) -> None:
    with engine.write() as transaction:
        transaction.run("INSERT INTO thing SELECT count(*) + 1 FROM thing")


async def _asked_together(engine: Engine, writer: Writer[Value, Value], values: Sequence[Value]) -> list[object]:
    """What came of each; all but the first share a batch, for they wait while somebody else has the turn."""
    with engine.write():
        asked = [asyncio.create_task(writer.ask_soon(value)) for value in values]
        await asyncio.sleep(0)
    return list(await asyncio.gather(*asked, return_exceptions=True))


UNSAFE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


@pytest.mark.parametrize("setting", UNSAFE)
def test_a_server_that_may_forget_what_it_said_yes_to_is_refused(postgres: Server, url: str, setting: str) -> None:
    with closing(PostgresEngine(url)) as running:
        _insert(running, 1)
        postgres.run(f"ALTER SYSTEM SET {setting} = {UNSAFE[setting]}")
        postgres.run("SELECT pg_reload_conf()")
        try:
            _wait_until(lambda: postgres.run(f"SHOW {setting}") == [("off",)])
            with closing(PostgresEngine(url)) as engine:
                with pytest.raises(faults.NotDurable, match=f"{setting} is off"):
                    engine.prepare()
                assert _ids(engine) == [1]  # reading does no harm
            with pytest.raises(faults.NotDurable, match=f"{setting} is off"):
                _insert(running, 2)  # though its connection is older than the setting
        finally:
            postgres.run(f"ALTER SYSTEM RESET {setting}")
            postgres.run("SELECT pg_reload_conf()")
            _wait_until(lambda: postgres.run(f"SHOW {setting}") == [("on",)])
        _insert(running, 3)
        assert _ids(running) == [1, 3]


def test_a_setting_of_the_database_counts_too(postgres: Server, url: str) -> None:
    postgres.run(f"ALTER DATABASE {DATABASE} SET synchronous_commit = off")
    try:
        with closing(PostgresEngine(url)) as engine, pytest.raises(faults.NotDurable), engine.write():
            pass
    finally:
        postgres.run(f"ALTER DATABASE {DATABASE} RESET synchronous_commit")


def test_a_standby_is_for_who_looks_and_not_for_a_relay_which_would_miss_what_it_said_yes_to() -> None:
    with running_server() as server:
        url = server.database()
        server.stop()
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        with closing(PostgresEngine(url, read_only=True)) as engine, engine.read() as transaction:
            assert transaction.tables() == set()
        with pytest.raises(faults.ServerUnfit, match="standby"):
            PostgresEngine(url)


def test_a_server_that_is_not_there_is_a_fault_worth_another_try() -> None:
    with pytest.raises(faults.ServerGone) as raised:
        PostgresEngine("postgresql://holdfast:secret@/none?host=/nowhere")
    assert raised.value.temporary
    assert "secret" not in str(raised.value)


def test_a_writer_waits_for_the_one_before_it(engines: tuple[PostgresEngine, PostgresEngine]) -> None:
    """Whatever either of them does in its turn, they cannot wait for each other in a circle."""
    first, second = engines
    waiting = threading.Thread(target=_insert, args=(second, 2))
    with first.write() as transaction:
        waiting.start()
        _wait_until(lambda: _waiters(first) == 1)
        transaction.run("INSERT INTO thing VALUES (1)")
        assert _ids(first) == []
    waiting.join()
    assert _ids(first) == [1, 2]


@pytest.mark.parametrize(
    "setting", ["default_transaction_isolation = 'serializable'", "default_transaction_read_only = on"]
)
def test_a_writer_sees_what_was_written_before_its_turn_whatever_the_database_has_as_default(
    postgres: Server, engines: tuple[PostgresEngine, PostgresEngine], setting: str
) -> None:
    name, _, _ = setting.partition(" ")
    postgres.run(f"ALTER DATABASE {DATABASE} SET {setting}")
    try:
        first, second = engines
        waiting = threading.Thread(target=_insert_next, args=(second,))
        with first.write() as transaction:
            waiting.start()
            _wait_until(lambda: _waiters(first) == 1)
            transaction.run("INSERT INTO thing VALUES (1)")
        waiting.join()
        assert _ids(first) == [1, 2]
    finally:
        postgres.run(f"ALTER DATABASE {DATABASE} RESET {name}")


INSERT = "INSERT INTO thing SELECT length(CAST(id AS text)) FROM wanted"
BAD_VALUES: dict[str, int | str] = {"NUL": "a\0b", "a huge number": 2**63}


@pytest.mark.parametrize("bad", BAD_VALUES)
def test_a_value_that_no_column_holds_fails_alone_and_not_the_requests_beside_it(url: str, bad: str) -> None:
    def apply(transaction: Transaction, requests: Sequence[Value]) -> list[Value]:
        for request in requests:
            transaction.lookup(INSERT, ("id",), [(request,)])
        return list(requests)

    with closing(PostgresEngine(url)) as engine:
        writer: Writer[Value, Value] = Writer(engine, apply)
        first, worst, last = asyncio.run(_asked_together(engine, writer, ["a", BAD_VALUES[bad], "abc"]))
        writer.close()
        assert (first, type(worst), last) == ("a", ConstraintViolated, "abc")
        assert _ids(engine) == [1, 3]


def test_a_writer_that_stalls_loses_its_turn_and_what_it_did(
    engines: tuple[PostgresEngine, PostgresEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_session, "STALL_TIMEOUT_S", 1)
    first, second = engines
    with pytest.raises(faults.ServerGone), first.write() as transaction:
        transaction.run("INSERT INTO thing VALUES (1)")
        _insert(second, 2)  # while the first one says nothing
        transaction.run("INSERT INTO thing VALUES (3)")
    assert _ids(first) == [2]
    _insert(first, 4)
    assert _ids(second) == [2, 4]


DEAF = """
import sys
from holdfast.store.postgres import PostgresEngine
with PostgresEngine(sys.argv[1]).write() as transaction:
    transaction.run("INSERT INTO thing VALUES (1)")
    transaction.rows("SELECT repeat('x', 1000000) FROM generate_series(1, 1000)")
"""


def test_a_writer_that_is_stopped_while_much_is_sent_to_it_loses_its_turn_too(
    postgres: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_session, "TURN_TIMEOUT_S", 2)
    monkeypatch.setattr(postgres_session, "STALL_TIMEOUT_S", 1)
    process = subprocess.Popen([sys.executable, "-c", DEAF, url], stderr=subprocess.DEVNULL)
    try:
        sending = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"
        _wait_until(lambda: bool(postgres.run(sending)))
        process.send_signal(signal.SIGSTOP)
        with closing(PostgresEngine(url)) as engine:
            _insert(engine, 2)
            assert _ids(engine) == [2]
    finally:
        process.kill()
        process.wait()


def test_a_commit_whose_answer_is_lost_is_not_called_undone(
    postgres: Server, engines: tuple[PostgresEngine, PostgresEngine]
) -> None:
    first, second = engines
    with pytest.raises(faults.Unanswered), first.write() as transaction:
        transaction.run("INSERT INTO thing VALUES (1)")
        postgres.run(f"SELECT pg_terminate_backend({first.writer_pid}, 10000)")
    _insert(first, 2)
    assert _ids(second) == [2]


@pytest.mark.parametrize("end", ["pg_cancel_backend({})", "pg_terminate_backend({})"])
def test_a_commit_that_no_standby_confirmed_is_not_called_done(
    postgres: Server, engines: tuple[PostgresEngine, PostgresEngine], end: str
) -> None:
    """Somebody cancels the wait, or a statement timeout does: the server then says yes, and warns that it may be lost."""
    engine, _ = engines
    raised: list[BaseException] = []

    def insert() -> None:
        try:
            _insert(engine, 1)
        except faults.Fault as fault:
            raised.append(fault)

    engine.prepare()
    postgres.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    postgres.run("SELECT pg_reload_conf()")
    try:
        _wait_until(lambda: postgres.run("SHOW synchronous_standby_names") == [("nobody",)])
        writing = threading.Thread(target=insert)
        writing.start()
        waits = f"SELECT 1 FROM pg_stat_activity WHERE pid = {engine.writer_pid} AND wait_event = 'SyncRep'"
        _wait_until(lambda: postgres.run(waits) != [])
        postgres.run(f"SELECT {end.format(engine.writer_pid)}")
        writing.join()
    finally:
        postgres.run("ALTER SYSTEM RESET synchronous_standby_names")
        postgres.run("SELECT pg_reload_conf()")
        _wait_until(lambda: postgres.run("SHOW synchronous_standby_names") == [("",)])
    assert [type(fault) for fault in raised] == [faults.Unanswered]
    _insert(engine, 2)
    assert _ids(engine) == [1, 2]


def test_connections_that_died_while_they_lay_idle_are_replaced(postgres: Server, url: str) -> None:
    with closing(PostgresEngine(url)) as engine:
        _insert(engine, 1)
        with engine.read(), engine.read():
            pass
        postgres.run(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{DATABASE}'")
        assert _ids(engine) == [1]
        _insert(engine, 2)
        assert _ids(engine) == [1, 2]


@pytest.mark.parametrize("begin", [PostgresEngine.write, PostgresEngine.read])
def test_a_server_that_ends_every_new_connection_is_not_tried_for_ever(
    postgres: Server, url: str, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Engine], Any]
) -> None:
    """As a proxy does that has lost its server: it lets in whoever comes, and ends what is asked of it."""

    def ended(*asked: object, **how: object) -> "psycopg.Connection[Any]":
        if len(made) > 10:
            pytest.fail("it is tried for ever")
        made.append(postgres_session.connect(*asked, **how))  # type: ignore[arg-type]
        postgres.run(f"SELECT pg_terminate_backend({made[-1].info.backend_pid}, 10000)")
        return made[-1]

    made: list[psycopg.Connection[Any]] = []
    with closing(PostgresEngine(url)) as engine:
        _insert(engine, 1)
        monkeypatch.setattr("holdfast.store.postgres.connect", ended)
        postgres.run(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{DATABASE}'")
        with pytest.raises(faults.ServerGone), begin(engine):
            pass
    assert len(made) == 1


def test_a_read_that_fails_does_not_have_writers_learn_their_tables_anew(url: str) -> None:
    with closing(PostgresEngine(url)) as engine:
        with engine.write() as transaction:
            transaction.insert("thing", ("id",), [(1,)])
        with suppress(ValueError), engine.read():
            raise ValueError
        assert engine._columns == {"thing": {"id": "bigint"}}


def test_what_one_writes_the_other_hears_of_and_not_what_it_writes_itself(
    engines: tuple[PostgresEngine, PostgresEngine],
) -> None:
    first, second = engines
    heard = threading.Event()
    with closing(first.watch(heard.set)) as watch:
        assert watch.wait_for_duty()
        _wait_until(heard.is_set)  # once at the beginning
        heard.clear()
        _insert(first, 1)
        _insert(first, 2)
        time.sleep(0.2)  # nothing to wait for: what must not come
        assert not heard.is_set()
        _insert(second, 3)
        assert heard.wait(WAIT_S)


def test_the_duty_is_ones_and_the_next_ones_when_it_goes(engines: tuple[PostgresEngine, PostgresEngine]) -> None:
    first, second = (engine.watch(lambda: None) for engine in engines)
    try:
        _wait_until(lambda: first.has_duty or second.has_duty)
        holder, other = (first, second) if first.has_duty else (second, first)
        assert not other.has_duty
        holder.close()
        _wait_until(lambda: other.has_duty)
    finally:
        first.close()
        second.close()


def test_a_duty_that_was_lost_is_not_thought_to_be_there(
    postgres: Server, engines: tuple[PostgresEngine, PostgresEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_watch, "RECONNECT_S", WAIT_S)  # or whoever comes back sooner might have it again
    with closing(engines[0].watch(lambda: None)) as first:
        assert first.wait_for_duty()
        with closing(engines[1].watch(lambda: None)) as second:
            holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory'"
            postgres.run(f"SELECT pg_terminate_backend(pid, 10000) FROM ({holder}) AS holding", DATABASE)
            _wait_until(lambda: second.has_duty and not first.has_duty)
            monkeypatch.setattr(postgres_watch, "DUTY_WAIT_S", 0.01)
            assert not first.wait_for_duty()


def test_a_sequence_in_the_place_of_the_head_row_lets_a_follower_miss_a_row(postgres: Server, url: str) -> None:
    """Why positions are taken under the lock: a number is given before its commit, and commits come in another order."""
    postgres.run("CREATE TABLE numbered (seq bigserial PRIMARY KEY)", DATABASE)
    follow = "SELECT seq FROM numbered WHERE seq > %s ORDER BY seq"
    with psycopg.connect(url) as slow, psycopg.connect(url) as fast, psycopg.connect(url, autocommit=True) as follower:
        slow.execute("INSERT INTO numbered DEFAULT VALUES")
        fast.execute("INSERT INTO numbered DEFAULT VALUES")
        fast.commit()
        assert follower.execute(follow, [0]).fetchall() == [(2,)]
        slow.commit()
        assert follower.execute(follow, [2]).fetchall() == []  # and so it never sees 1


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if file.parent.name in ("relay", "store") or (file.parent.name, file.name) == CONSOLE],
    ids=lambda file: f"{file.parent.name}/{file.name}",
)
def test_every_statement_of_a_relay_is_understood(url: str, postgres: Server, file: Path) -> None:
    postgres.run("DROP SCHEMA public CASCADE; CREATE SCHEMA public", DATABASE)
    with closing(PostgresEngine(url)) as engine:
        relay.prepare(engine, lambda: 0, bytes)
        explained(engine, file)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://user:pass@host:5432/db?sslmode=require", "postgresql://user@host:5432/db?sslmode=require"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgres://:pass@/db", "postgres:///db"),
        ("postgresql://user@host/db?password=pass&sslmode=require", "postgresql://user@host/db?sslmode=require"),
        ("postgresql://user@host/db?password=pass", "postgresql://user@host/db"),
        ("postgresql://user@host/db?sslpassword=key&password=pass", "postgresql://user@host/db"),
        (
            "postgresql://user@host/db?password=pass&sslpassword=key&sslmode=require",
            "postgresql://user@host/db?sslmode=require",
        ),
        ("postgresql://host/db?sslmode=require&sslpassword=key", "postgresql://host/db?sslmode=require"),
        ("postgresql://user:pass@host?application_name=a@b", "postgresql://user@host?application_name=a@b"),
        ("postgresql://host:5432/db?application_name=a@b", "postgresql://host:5432/db?application_name=a@b"),
        ("postgresql://one:1,two:2/db?application_name=a@b", "postgresql://one:1,two:2/db?application_name=a@b"),
        ("postgresql://[::1]:5432/db?application_name=a@b", "postgresql://[::1]:5432/db?application_name=a@b"),
    ],
)
def test_a_password_is_never_shown(url: str, told: str) -> None:
    assert address.shown(url) == told
    assert address.password(url) == ("pass" if "=pass" in url or ":pass" in url else None)
    assert address.has_key_password(url) == ("sslpassword" in url)


@pytest.mark.parametrize("secret", ["se#cret", "se?cret", "se@cret", "se/cret", "#"])
def test_a_password_with_any_sign_is_hidden_and_used(secret: str) -> None:
    url = f"postgresql://user:{secret}@host/db"
    assert (address.shown(url), address.password(url)) == ("postgresql://user@host/db", secret)


@pytest.mark.parametrize("secret", ["se%zzcret", "se cret"])
def test_a_url_that_cannot_be_read_is_refused_without_a_word_of_it(secret: str) -> None:
    with pytest.raises(faults.NotLetIn, match="URL cannot be read") as raised:
        PostgresEngine(f"postgresql://user:{secret}@localhost/db")
    assert "cret" not in str(raised.value)
    assert raised.value.__suppress_context__


def _waiters(engine: Engine) -> int:
    with engine.read() as transaction:
        return int(transaction.rows("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")[0][0])


def _wait_until(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happens():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
