"""Several relays on one database: what one of them took the other hands over, and what one decides holds for both."""

import asyncio
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.protocol import keys
from holdfast.protocol.history import Draft, Kind
from holdfast.protocol.schedule import SECOND
from holdfast.relay import directory, feed, neighbours, offer
from holdfast.relay.answer import ALL
from holdfast.relay.database import open_relay
from holdfast.relay.neighbours import OtherRelay
from holdfast.relay.relay import Relay
from holdfast.relay.settings import FeedSettings, Limits, Settings
from holdfast.store import faults, history
from holdfast.store.engine import Engine
from holdfast.store.postgres import PostgresEngine
from tests.people import raw, secret_of
from tests.postgres import Server
from tests.relay import store
from tests.relay.feed_client import Author, Feed, tail
from tests.relay.pair import Pair, two_relays
from tests.relay.place import Place, Whose
from tests.relay.queue_client import Friends, QueueClient, connected, eventually, following, ids
from tests.relay.running import command

SWEEPING = "[retention]\nsweep_interval_s = 1\n"
# Wake-ups alone bring what the other relay took: no look at the clock helps them.
NO_POLL = "[queue]\npoll_interval_s = 86400\n[feed]\nopen = true\n"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[Pair]:
    with two_relays(tmp_path_factory.mktemp("pair"), postgres, NO_POLL) as made:
        yield made


@pytest.fixture
def friends(pair: Pair) -> Friends:
    return Friends(pair[0])


def test_a_relay_looks_up_ids_by_their_key_though_the_server_has_no_figures_about_the_table(
    tmp_path: Path, postgres: Server
) -> None:
    """The table was empty when the statement was planned, nobody analysed it since, and it has grown."""
    with closing(PostgresEngine(store.database(postgres))) as engine:
        limits = Limits(queue_messages_max=1000, messages_burst=1000)
        place = Place(tmp_path / "unused", Settings(limits=limits), engine).settle()
        for _ in range(6):  # more often than a server plans anew
            place.expect(201, *(place.alice.message(place.bob) for _ in range(50)))
        read = [offer.read(raw(place.alice.message(place.bob))) for _ in range(20)]
        offers = [offered for offered in read if isinstance(offered, offer.Offer)]
        with engine.read() as transaction:
            assert directory.load_earlier(transaction, offers, {}) == {}
            whole = transaction.rows("SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'dedupe'")
        assert whole == [(0,)]
        asyncio.run(place.relay.close())


def test_what_was_sent_at_one_relay_is_handed_over_by_the_other_then_and_live(pair: Pair, friends: Friends) -> None:
    waited = friends.send(60)
    with following(pair[1], friends.bob) as bob:
        got = bob.until_live()
        assert ids(got) == ids(waited)
        bob.acknowledge([message.seq for message in got])
        assert {message.was_stored for message in got} == {True}
        live = [event for _ in range(5) for event in friends.send()]
        came = [bob.message() for _ in live]
        assert ids(came) == ids(live)
        assert {message.was_stored for message in came} == {False}
        bob.acknowledge([message.seq for message in came])
    assert friends.drain(friends.bob) == []


def _followed(friends: Friends, bob: QueueClient) -> None:
    """Have the other relay look up to now, so that nothing wakes its readers but what comes next."""
    (event,) = friends.send()
    assert bob.message().id == event.id


def test_an_id_used_at_one_relay_is_known_at_the_other(pair: Pair, friends: Friends) -> None:
    event = friends.alice.message(friends.bob)
    (first,) = friends.taken(event)
    friends.relay = pair[1]
    (again,) = friends.publish(event)
    assert (again["status"], again["duplicate"], again["history_id"]) == (200, True, first["history_id"])
    assert again["anchor"]["seq"] >= first["history_id"]


def test_a_member_who_is_revoked_at_one_relay_is_out_at_the_other(pair: Pair, friends: Friends) -> None:
    with following(pair[1], friends.bob) as bob:
        bob.live()
        _followed(friends, bob)
        friends.taken(friends.alice.revoke(friends.bob))
        assert bob.closed() == (4005, "member_revoked")


def test_a_key_that_is_rotated_at_one_relay_reads_no_more_at_the_other(pair: Pair, friends: Friends) -> None:
    with following(pair[1], friends.bob) as bob:
        bob.live()
        _followed(friends, bob)
        friends.taken(friends.bob.rotate(secret_of("another key of bob")))
        assert bob.refused() == "stale_key"


def test_a_newer_connection_at_one_relay_replaces_the_older_at_the_other(pair: Pair, friends: Friends) -> None:
    with following(pair[0], friends.bob) as older:
        older.live()
        with following(pair[1], friends.bob) as newer:
            newer.live()
            assert older.closed() == (4003, "replaced_by_newer_connection")
            with following(pair[0], friends.bob) as newest:
                newest.live()
                assert newer.closed() == (4003, "replaced_by_newer_connection")
                (event,) = friends.send()
                assert newest.message().id == event.id


def test_a_relay_that_stood_still_gives_no_queue_to_a_connection_that_ended_meanwhile(
    pair: Pair, friends: Friends
) -> None:
    """Its client has long been at the other relay, and would be told there that somebody else has its key."""
    stalled = pair[0].process
    with connected(pair[0], friends.bob) as ghost:
        stalled.send_signal(signal.SIGSTOP)
        try:
            ghost.say("QUEUE", ghost.sub, {"mesh": friends.mesh})
            ghost.socket.socket.shutdown(socket.SHUT_RDWR)
            with following(pair[1], friends.bob) as bob:
                bob.live()
                stalled.send_signal(signal.SIGCONT)
                eventually(lambda: pair[0].metric("holdfast_websockets") == 0)
                (event,) = friends.send()
                assert bob.message().id == event.id
        finally:
            stalled.send_signal(signal.SIGCONT)


def test_a_block_at_one_relay_holds_at_the_other(pair: Pair, friends: Friends) -> None:
    friends.taken(friends.bob.block(friends.alice))
    friends.relay = pair[1]
    friends.send()
    assert friends.drain(friends.bob) == []


def test_the_places_of_a_queue_are_counted_over_both(pair: Pair, friends: Friends) -> None:
    friends.send(600)
    friends.relay = pair[1]
    friends.send(400)
    assert friends.refused(friends.alice.message(friends.bob)) == "queue_full"
    friends.relay = pair[0]
    assert friends.refused(friends.alice.message(friends.bob)) == "queue_full"


def test_a_reader_of_the_feed_at_one_relay_hears_what_the_other_took(pair: Pair) -> None:
    author = Author("author of several")
    here, there = Feed(pair[0]), Feed(pair[1])
    first, second = author.snapshot("one"), author.snapshot("two")
    (seq,) = here.put(first)
    with there.client() as client:
        client.changes(tail(author, since=seq - 1, live=True))
        client.expect_events({seq: first})
        client.expect_eose(seq)
        (seq,) = here.put(second)
        client.expect_events({seq: second})


def test_a_reader_that_waits_for_a_position_is_done_when_whatever_the_other_took_comes_to_it(
    pair: Pair, friends: Friends
) -> None:
    author = Author("author who waits")
    (seq,) = Feed(pair[0]).put(author.snapshot())
    with Feed(pair[1]).client() as client:
        client.changes(tail(author, since=seq, until_seq=seq + 3, live=True))
        client.expect_eose(seq)
        friends.send(3)  # at the first relay, and nothing of it is for the reader
        client.expect(["CLOSED", "s", "until_seq is reached"])


def test_a_relay_with_another_key_is_refused(pair: Pair, tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "stranger", "--store", pair.url), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "another key" in done.stderr
    assert "Copy relay.key" in done.stderr


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("postgresql://holdfast:secret@localhost/relay", "PGPASSWORD"),
        ("postgresql://holdfast@localhost/relay?sslkey=key&sslpassword=secret", ".pg_service.conf"),
    ],
)
def test_a_password_is_not_taken_where_everybody_sees_it(tmp_path: Path, url: str, instead: str) -> None:
    given = ["--store", url]
    done = subprocess.run(command(tmp_path / "relay", *given), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert instead in " ".join(done.stderr.split())
    assert "secret" not in done.stderr


def test_sweeps_are_one_relays_work_and_anothers_when_it_is_gone(tmp_path: Path, postgres: Server) -> None:
    with two_relays(tmp_path, postgres, SWEEPING) as pair:

        def sweeps(number: int) -> float:
            return pair[number].metric("holdfast_sweeps_total")

        eventually(lambda: sweeps(0) + sweeps(1) >= 3)
        assert min(sweeps(0), sweeps(1)) == 0
        runner = 0 if sweeps(0) else 1
        pair.kill(runner)
        eventually(lambda: sweeps(1 - runner) >= 2)
        pair.start(runner)
        before = sweeps(1 - runner)
        eventually(lambda: sweeps(1 - runner) >= before + 2)
        assert sweeps(runner) == 0


@pytest.fixture
def engine(postgres: Server) -> Iterator[Engine]:
    url = store.database(postgres)
    with closing(open_relay(url)) as opened:
        yield opened


def test_a_state_that_is_handed_over_at_one_relay_holds_back_compaction_at_the_other(engine: Engine) -> None:
    clock = [1_800_000_000 * SECOND]
    settings = Settings()
    here, there = (Relay(engine, settings, Whose, clock=lambda: clock[0], inline=True) for _ in range(2))

    def held() -> bool:
        with engine.write() as transaction:
            since = clock[0] - settings.feed.bootstrap_timeout_s * SECOND
            return bool(neighbours.bootstraps(transaction, since))

    async def hand_over() -> None:
        assert not held()
        await here.begin_bootstrap("one", "an author", clock[0])
        await there.begin_bootstrap("two", "an author", clock[0])
        here.end_bootstrap("one")
        await here.tell_ended()
        assert held()
        there.end_bootstrap("two")
        await there.tell_ended()
        assert not held()
        await there.begin_bootstrap("of a relay that dies", "an author", clock[0])
        clock[0] += settings.feed.bootstrap_timeout_s * SECOND
        assert not held()

    asyncio.run(hand_over())


def test_a_state_that_is_handed_over_at_one_relay_holds_back_what_is_part_of_it_at_the_other(engine: Engine) -> None:
    clock = [1_800_000_000 * SECOND]
    settings = Settings(feed=FeedSettings(open=True, compact_after_hours=0, recent_count=1))
    here, there = (Relay(engine, settings, Whose, clock=lambda: clock[0], inline=True) for _ in range(2))
    author = Author(now_s=clock[0] // SECOND)

    async def edit() -> None:
        (answer,) = await here.publish([raw(author.snapshot())])
        assert answer.http_status == 201

    async def compacted() -> int:
        return (await there.sweep())["compacted_snapshots"].total()

    async def hand_over() -> None:
        await edit()
        await edit()
        assert await here.begin_bootstrap("one", author.key, clock[0]) == 2
        await edit()
        assert await compacted() == 1
        here.end_bootstrap("one")
        await here.tell_ended()
        assert await compacted() == 1

    asyncio.run(hand_over())


def test_a_relay_that_does_not_tell_what_it_hands_over_holds_back_everything(engine: Engine) -> None:
    """One of a version before, while the new one has upgraded the schema."""
    with engine.write() as transaction:
        transaction.run("INSERT INTO bootstrap (key, began_at) VALUES ('one', 5)")
        assert neighbours.bootstraps(transaction, 0) == [feed.Bootstrap(ALL, 0, 5)]


def test_the_end_of_a_hand_over_that_the_store_did_not_take_is_told_again(engine: Engine) -> None:
    clock = [1_800_000_000 * SECOND]
    relay = Relay(engine, Settings(), Whose, clock=lambda: clock[0], inline=True)

    async def hand_over() -> None:
        await relay.begin_bootstrap("one", "an author", clock[0])
        relay.end_bootstrap("one")
        _rename(engine, "bootstrap", "away")
        with pytest.raises(faults.Fault):
            await relay.tell_ended()
        _rename(engine, "away", "bootstrap")
        await relay.tell_ended()
        with engine.write() as transaction:
            assert not neighbours.bootstraps(transaction, 0)

    asyncio.run(hand_over())


def _rename(engine: Engine, table: str, name: str) -> None:
    with engine.write() as transaction:
        transaction.script(f"ALTER TABLE {table} RENAME TO {name}")


def test_an_action_that_only_a_newer_relay_knows_stops_nobody(engine: Engine) -> None:
    with engine.write() as transaction:
        before = neighbours.seen(transaction)
        details = (b'{"action":"of_tomorrow"}', b'{"action":"revoke_member","member":"bob"}')
        history.append(transaction, 0, [Draft(kind=Kind.ADMIN, mesh="home", detail=detail) for detail in details])
    with engine.read() as transaction:
        assert neighbours.changed_since(transaction, before)[1] == [("home", "bob")]


def test_pages_of_the_newest_snapshots_do_not_read_again_what_came_before(engine: Engine) -> None:
    author, count = "a" * 64, 6 * feed.PAGE_ROWS
    columns = ("seq", "event_id", "author", "kind", "d", "o", "clock", "created_at", "accepted_at", "event", "size")
    with engine.write() as transaction:
        rows = ((n, n.to_bytes(32), author, 44201, "d", "put", "[]", n // 3, 1, b"{}", 2) for n in range(1, count + 1))
        transaction.insert("snapshot", columns, rows)
    with engine.read() as transaction:
        seen, after = 0, None
        while page := feed.newest(transaction, author, count, 0, count, after):
            seen, after = seen + len(page), page[-1]
        read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'snapshot'"
        assert seen == count
        assert transaction.rows(read)[0][0] < 2 * count


def test_a_database_is_one_relays(engine: Engine) -> None:
    with engine.write() as transaction:
        neighbours.claim_key(transaction, Whose.pubkey)
        neighbours.claim_key(transaction, Whose.pubkey)
    with pytest.raises(OtherRelay), engine.write() as transaction:
        neighbours.claim_key(transaction, keys.public_key(secret_of("stranger")))


class _Server:
    """A database of which a standby lacks what came last, and a relay that runs on."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._url = store.database(server)
        self.engine = open_relay(self._url)
        self._author = Author()
        self.relay = self.another()

    def another(self) -> Relay:
        return Relay(self.engine, Settings(feed=FeedSettings(open=True)), Whose, inline=True)

    async def status(self, relay: Relay | None = None) -> int:
        (answer,) = await (relay or self.relay).publish([raw(self._author.snapshot())])
        return answer.http_status

    def copy(self) -> str:
        """A standby that falls behind from now on."""
        name = self._name(self._url)
        self._server.run(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'")
        return self._server.database(name)

    def fail_over(self, standby: str) -> None:
        self._server.drop(self._url)
        self._server.run(f"ALTER DATABASE {self._name(standby)} RENAME TO {self._name(self._url)}")

    def close(self) -> None:
        self.engine.close()
        self._server.drop(self._url)

    @staticmethod
    def _name(url: str) -> str:
        return url.partition("?")[0].rpartition("/")[2]


@pytest.fixture
def failing(postgres: Server) -> Iterator[_Server]:
    with closing(_Server(postgres)) as made:
        yield made


@pytest.mark.parametrize("others", [0, 1, 2], ids=["behind", "level", "ahead"])
def test_a_relay_gives_no_position_a_second_meaning_after_its_server_lost_what_it_said_yes_to(
    failing: _Server, others: int
) -> None:
    """Whatever another relay, which does not know of it, has written meanwhile."""

    async def scenario() -> None:
        assert await failing.status() == 201
        standby = failing.copy()
        assert await failing.status() == 201
        failing.fail_over(standby)
        other = failing.another()
        assert [await failing.status(other) for _ in range(others)] == [201] * others
        before = other.head()
        assert await failing.status() == 503
        assert not failing.relay.ready
        assert await failing.status() == 503
        assert other.head() == before
        assert await failing.status(other) == 201

    asyncio.run(scenario())


def test_a_relay_that_only_read_what_another_said_yes_to_notices_that_it_is_lost(failing: _Server) -> None:
    async def scenario() -> None:
        other = failing.another()
        standby = failing.copy()
        assert await failing.status(other) == 201
        seen = await failing.relay.seen()
        failing.fail_over(standby)
        with pytest.raises(neighbours.WentBack):
            await failing.relay.wake_changed(seen)
        assert not failing.relay.ready

    asyncio.run(scenario())


def test_a_relay_that_runs_while_its_database_becomes_another_log_says_no(failing: _Server) -> None:
    async def scenario() -> None:
        assert await failing.status() == 201
        with failing.engine.write() as transaction:
            history.fork(transaction, 0, bytes(16))
        assert await failing.status() == 503
        assert await failing.status(failing.another()) == 201

    asyncio.run(scenario())


def test_a_relay_goes_on_though_what_it_knew_last_was_pruned(failing: _Server) -> None:
    async def scenario() -> None:
        assert await failing.status() == 201
        other = failing.another()
        assert await failing.status(other) == 201
        with failing.engine.write() as transaction:
            history.prune(transaction, 0, 2)
        assert await failing.status() == 201

    asyncio.run(scenario())
