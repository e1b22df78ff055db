"""Who may follow a queue, on how many connections, and what ends it: a newer one, a rotation, a revocation, a CLOSE."""

import asyncio
import json
import socket as sockets
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.connection_auth import sign_connection_auth
from holdfast.protocol.event import Event, encode
from holdfast.protocol.history import Kind
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.schedule import SECOND
from holdfast.relay import queue
from holdfast.relay.answer import EVERYBODY
from holdfast.relay.changes import Feeds
from holdfast.relay.reading import ACKNOWLEDGED_MAX, PUBKEYS_MAX, STREAMS_MAX, Reading, read_frame
from holdfast.relay.relay import Relay
from holdfast.relay.settings import Limits, QueueSettings, Settings
from holdfast.relay.stream import Streams
from tests.people import MESH, Person, public_key, raw, secret_of
from tests.relay.place import Place, Whose
from tests.relay.queue_client import Friends, QueueClient, connected, eventually, following, ids
from tests.relay.queue_world import Reader, World
from tests.relay.running import RunningRelay, running

NO_POLL = "[queue]\npoll_interval_s = 86400\n"


@pytest.fixture(scope="module")
def one_relay(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("streams") / "relay", NO_POLL) as started:
        yield started
        assert not [line for line in started.log() if line["event"] in ("bug", "fault")]


@pytest.fixture
def friends(one_relay: RunningRelay) -> Friends:
    return Friends(one_relay)


def test_a_newer_connection_replaces_the_older_one_and_is_served(friends: Friends) -> None:
    sent = friends.send(2)
    with following(friends.relay, friends.bob) as older:
        older.until_live()
        with following(friends.relay, friends.bob) as newer:
            assert older.closed() == (4003, "replaced_by_newer_connection")
            assert ids(newer.until_live()) == ids(sent)
            (live,) = friends.send()
            assert newer.message().id == live.id
            with following(friends.relay, friends.bob) as newest:
                assert newer.closed() == (4003, "replaced_by_newer_connection")
                newest.until_live()
                (live,) = friends.send()
                assert newest.message().id == live.id


def test_an_older_connection_whose_client_vanished_is_not_in_the_way(friends: Friends) -> None:
    for _ in range(20):
        with following(friends.relay, friends.bob) as older:
            older.live()
            older.cut()
            with following(friends.relay, friends.bob) as newer:
                newer.live()
                (event,) = friends.send()
                message = newer.message()
                assert message.id == event.id
                newer.acknowledge([message.seq])


def test_a_connection_that_opens_its_queue_again_starts_from_what_is_open(friends: Friends) -> None:
    sent = friends.send(3)
    with following(friends.relay, friends.bob) as bob:
        got = bob.until_live()
        bob.acknowledge([got[0].seq])
        bob.sub = "again"
        assert bob.open(friends.mesh)["pending_count"] == 2
        assert ids(bob.until_live()) == ids(sent[1:])
        bob.open(friends.mesh)  # and under the name it has
        assert ids(bob.until_live()) == ids(sent[1:])
        bob.say("QUEUE", "q", "ACK", [got[1].seq])
        bob.sub = "q"
        assert bob.refused() == "malformed", "the first stream is over"


def test_close_ends_a_stream_and_leaves_the_queue_and_the_connection(friends: Friends) -> None:
    sent = friends.send(2)
    with following(friends.relay, friends.bob) as bob:
        bob.until_live()
        bob.close("q")
        bob.close("never opened")
        bob.nothing_came()
        eventually(
            lambda: friends.relay.metric("holdfast_queue_streams") == 0
        )  # those of others before end on their own
        sent += friends.send()
        bob.nothing_came()
        assert bob.open(friends.mesh)["pending_count"] == 3
        assert ids(bob.until_live()) == ids(sent)


def test_who_prefers_the_oldest_connection_turns_the_newer_one_away(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL + 'second_connection = "prefer_oldest"\n') as relay:
        friends = Friends(relay)
        with following(relay, friends.bob) as older:
            older.live()
            with connected(relay, friends.bob) as newer:
                newer.say("QUEUE", "q", {"mesh": friends.mesh})
                assert newer.closed() == (4004, "member_already_connected")
            (event,) = friends.send()
            assert older.message().id == event.id
            older.open(friends.mesh)  # its own place is not somebody else's
            assert [older.message().id, older.hear()[2]] == [event.id, "LIVE"]
        with following(relay, friends.bob) as later:
            assert ids(later.until_live()) == [event.id]


def _vanish(relay: RunningRelay, friends: Friends) -> None:
    """Ask for a queue and a feed, and be gone before the answer, without a word."""
    with connected(relay, friends.bob) as client:
        followed = {"mode": "tail", "kinds": [40_000], "authors": [friends.bob.key], "live": True}
        client.say("QUEUE", "q", {"mesh": friends.mesh})
        client.say("CHANGES", "c", followed)
        client.socket.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.socket.shutdown(sockets.SHUT_RDWR)


def test_who_vanishes_before_the_answer_takes_up_no_place(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL + 'second_connection = "prefer_oldest"\n') as relay:
        friends = Friends(relay)
        for _ in range(20):
            _vanish(relay, friends)
        eventually(lambda: relay.metric("holdfast_websockets") == 0)
        assert relay.metric("holdfast_queue_streams") == relay.metric("holdfast_feed_subscriptions") == 0
        with following(relay, friends.bob) as client:
            client.live()


FAREWELL = b"\x88\x82" + bytes(4) + b"\x03\xe8"  # a close frame with 1000


@pytest.mark.parametrize("farewell", [FAREWELL, b""], ids=["with a close frame", "without a word"])
def test_acknowledgements_count_though_who_sent_them_left_before_the_answers(friends: Friends, farewell: bytes) -> None:
    """All that were read, and not only the first, whose answer nobody hears."""
    friends.send(20)
    with connected(friends.relay, friends.bob) as client:
        client.open(friends.mesh)
        said = [json.dumps(["QUEUE", "q", "ACK", [message.seq]]).encode() for message in client.until_live()]
        frames = b"".join(bytes((0x81, 0x80 | len(text))) + bytes(4) + text for text in said)
        client.socket.socket.sendall(frames + farewell)
        client.socket.socket.shutdown(sockets.SHUT_RDWR)
    eventually(lambda: friends.relay.metric("holdfast_websockets") == 0)
    with following(friends.relay, friends.bob) as client:
        assert client.until_live() == []


def test_acknowledgements_count_though_who_sent_them_is_cut_off_because_it_does_not_read(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL + "[limits]\nsend_timeout_s = 3.0\n") as relay:
        friends = Friends(relay)
        sent = friends.send(180, b"x" * 29_000)
        with relay.websocket(max_queue=1, max_size=None) as slow:
            slow.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 65_536)
            client = QueueClient(slow, relay.challenges[slow], relay.url)
            client.authenticate(friends.bob.secret)
            client.open(friends.mesh)
            got = client.messages(20)
            time.sleep(1.5)  # until the relay is stuck in the middle of a message, and its answers behind that
            for message in got:
                client.say("QUEUE", "q", "ACK", [message.seq])
            eventually(lambda: relay.metric("holdfast_websockets") == 0)
        with following(relay, friends.bob) as client:
            assert client.status["pending_count"] == len(sent) - len(got)


def test_where_both_connections_may_stay_each_sees_all_and_the_first_acknowledgement_closes(tmp_path: Path) -> None:
    with running(tmp_path / "relay", NO_POLL + 'second_connection = "allow_concurrent"\n') as relay:
        friends = Friends(relay)
        waiting = friends.send(2)
        with following(relay, friends.bob) as one, following(relay, friends.bob) as other:
            assert ids(one.until_live()) == ids(other.until_live()) == ids(waiting)
            (event,) = friends.send()
            first, second = one.message(), other.message()
            assert first.id == second.id == event.id
            seqs = [first.seq]
            assert one.acknowledge(seqs) == other.acknowledge(seqs) == seqs
            assert len(friends.entries(Kind.DELIVERED)) == 1
            one.socket.close()
            (event,) = friends.send()
            assert other.message().id == event.id, "one leaves, the other stays"


def test_a_revoked_member_is_cut_off_and_its_queue_dropped_but_what_it_sent_stays(friends: Friends) -> None:
    dropped = friends.send(3)
    from_bob = friends.send(2, sender=friends.bob, to=friends.carol)
    with following(friends.relay, friends.bob) as bob:
        got = bob.messages(3)
        bob.live()
        bob.acknowledge([got[0].seq])
        (answer,) = friends.taken(friends.alice.revoke(friends.bob))
        assert bob.closed() == (4005, "member_revoked")
    entries = friends.entries(Kind.DROPPED)
    assert [entry.event_id.hex() for entry in entries if entry.event_id] == ids(dropped[1:])
    assert {entry.recipient for entry in entries} == {friends.bob.member}
    admin = next(entry for entry in friends.entries(Kind.ADMIN) if entry.seq == answer["history_id"])
    assert {entry.at for entry in entries} == {admin.at}, "in one transaction"
    with connected(friends.relay, friends.bob) as bob:
        bob.say("QUEUE", "q", {"mesh": friends.mesh})
        assert bob.refused() == "not_a_member"
    assert ids(friends.drain(friends.carol)) == ids(from_bob)
    assert friends.refused(friends.alice.message(friends.bob)) == "destination_unknown"


def test_a_revocation_ends_whatever_else_the_connection_follows(friends: Friends) -> None:
    """Several speak on one connection; the others notice that it is over, and nothing is reported as a mistake."""
    elsewhere = Friends(friends.relay)
    guest, secret = Person(friends.bob.name, now_s=friends.bob.now_s, mesh=elsewhere.mesh), b"g" * 32
    elsewhere.taken(elsewhere.alice.invite(secret), guest.join(secret))
    elsewhere.send(500, to=guest)
    with following(friends.relay, friends.bob) as bob:
        bob.live()
        bob.say("QUEUE", "elsewhere", {"mesh": elsewhere.mesh})
        assert bob.hear()[2] == "STATUS"
        posting = threading.Thread(target=elsewhere.send, args=(100,), kwargs={"to": guest})
        posting.start()
        friends.taken(friends.alice.revoke(friends.bob))
        assert bob.closed() == (4005, "member_revoked")
        posting.join()
    with following(friends.relay, guest) as bob:
        assert bob.status["pending_count"] == 600


def test_a_rotated_key_ends_its_streams_and_the_new_key_reads_on(friends: Friends) -> None:
    sent = friends.send(2)
    new_secret = secret_of(f"{friends.bob.name} again")
    with following(friends.relay, friends.bob) as bob:
        bob.until_live()
        friends.taken(friends.bob.rotate(new_secret))
        assert bob.refused() == "stale_key"
        bob.say("QUEUE", "q", {"mesh": friends.mesh})
        assert bob.refused() == "stale_key", "the member has another key by now"
        assert bob.authenticate(new_secret)[2] is True
        assert bob.open(friends.mesh)["pending_count"] == 2
        assert ids(bob.until_live()) == ids(sent)
        (event,) = friends.send(recipient_key=public_key(new_secret))
        message = bob.message()
        assert message.id == event.id
        bob.acknowledge([message.seq])


def test_one_connection_follows_the_queues_of_several_meshes(friends: Friends) -> None:
    elsewhere = Friends(friends.relay)
    guest, secret = Person(friends.bob.name, now_s=friends.bob.now_s, mesh=elsewhere.mesh), b"h" * 32
    elsewhere.taken(elsewhere.alice.invite(secret), guest.join(secret))
    here, there = friends.send(), elsewhere.send(to=guest)
    with following(friends.relay, friends.bob) as bob:
        assert ids(bob.until_live()) == ids(here)
        bob.sub = "there"
        bob.open(elsewhere.mesh)
        (message,) = bob.until_live()
        assert message.id == there[0].id
        bob.say("QUEUE", "q", "ACK", [message.seq])
        assert bob.hear() == ["QUEUE", "q", "ACKED", []]
        assert bob.hear()[:3] == ["QUEUE", "q", "ERR"], "positions are of the queue that the name stands for"
        assert bob.acknowledge([message.seq]) == [message.seq]


@pytest.mark.parametrize(
    ("frame", "heard"),
    [
        (["QUEUE", "q"], "NOTICE"),
        (["QUEUE", "", {"mesh": "MESH"}], "NOTICE"),
        (["QUEUE", "q" * 65, {"mesh": "MESH"}], "NOTICE"),
        (["QUEUE", "q", "ACK", [0]], "NOTICE"),
        (["QUEUE", "q", "ACK", [2**63]], "NOTICE"),
        (["QUEUE", "q", "ACK", ["1"]], "NOTICE"),
        (["QUEUE", "q", "ACK", list(range(1, ACKNOWLEDGED_MAX + 2))], "NOTICE"),
        (["QUEUE", "q", "ACK", [1], "more"], "NOTICE"),
        (["CLOSE"], "NOTICE"),
        (["QUEUE", "q", "ACK"], "malformed"),
        (["QUEUE", "q", "NAK", [1]], "malformed"),
        (["QUEUE", "other", "ACK", [1]], "malformed"),
        (["QUEUE", "q", {}], "malformed"),
        (["QUEUE", "q", {"mesh": "no mesh"}], "malformed"),
        (["QUEUE", "q", {"mesh": "MESH", "since": 3}], "malformed"),
        (["QUEUE", "q", {"mesh": "MESH", "epoch": "abc"}], "malformed"),
        (["QUEUE", "q", {"mesh": "MESH", "epoch": "ab" * 15}], "malformed"),
        (["QUEUE", "q", {"mesh": "MESH", "replay": 1}], "malformed"),
        (["QUEUE", "q", {"mesh": "elsewhere"}], "not_a_member"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, list) else value,
)
def test_what_is_asked_wrongly_is_refused_and_the_stream_goes_on(
    friends: Friends, frame: list[Any], heard: str
) -> None:
    with following(friends.relay, friends.bob) as bob:
        bob.live()
        asked = json.loads(json.dumps(frame).replace("MESH", friends.mesh))
        bob.say(*asked)
        answer = bob.hear()
        if heard == "NOTICE":
            assert answer[0] == "NOTICE"
            assert answer[1].split(": ")[1] == "malformed"
        else:
            assert answer[:3] == ["QUEUE", asked[1], "ERR"]
            assert answer[3].split(": ")[1] == heard
        (event,) = friends.send()
        assert bob.message().id == event.id


def test_a_connection_shows_so_many_keys_and_follows_so_many_queues_and_no_more(friends: Friends) -> None:
    with following(friends.relay, friends.bob) as bob:
        bob.live()
        for number in range(PUBKEYS_MAX - 1):
            assert bob.authenticate(secret_of(f"key {number}"))[2] is True
        heard = bob.authenticate(secret_of("one more"))
        assert (heard[2], heard[3].split(": ")[1]) == (False, "auth_failed")
        assert bob.authenticate(friends.bob.secret)[2] is True, "one that it has shown may be shown again"
        meshes = []
        for number in range(STREAMS_MAX):
            founded = Person(friends.bob.name, now_s=friends.bob.now_s, mesh=f"{friends.mesh}-{number}")
            assert str(friends.relay.publish(founded.found_mesh())) == "201"
            meshes.append(founded.mesh)
        for mesh in meshes[:-1]:
            bob.sub = mesh
            bob.open(mesh)
            bob.live()
        bob.sub = meshes[-1]
        bob.say("QUEUE", bob.sub, {"mesh": bob.sub})
        assert bob.refused() == "too_many_subscriptions"
        bob.close(meshes[0])
        bob.open(bob.sub)


def test_a_connection_that_asks_late_does_not_replace_one_that_came_after_it() -> None:
    """As when it was cut, and the relay reads only now what had come on it: its member is there on the newer one."""
    world = World(Settings())
    older, newer = Reader(world, world.place.bob, asks=False), Reader(world, world.place.bob)
    world.settle()
    older.ask()
    world.settle()
    event = world.place.alice.message(world.place.bob)
    world.publish(event)
    newer.let_through(1)
    world.settle()
    assert older.closed is Refusal.REPLACED_BY_NEWER_CONNECTION
    assert newer.closed is None
    assert [message[2] for message in newer.messages] == [event.id]
    world.close()


def test_a_connection_that_is_falling_apart_can_still_be_told_that_it_is_replaced(tmp_path: Path) -> None:
    """Its tasks are being ended and take no more: there is nobody left to tell, and whoever replaces it is not harmed."""
    place = Place(tmp_path / "relay.db", Settings(limits=Limits(messages_burst=1000))).settle()
    streams = Streams(place.relay)
    heard: list[Any] = []

    async def say(frame: tuple[Any, ...]) -> None:
        heard.append(frame)

    async def close(refusal: Refusal) -> None:
        heard.append(refusal)

    async def fail() -> None:
        raise ConnectionError

    async def fall_apart() -> None:
        reading = Reading(place.relay, streams, Feeds(place.relay), {"ws://relay"}, "challenge", say, close)
        async with asyncio.TaskGroup() as tasks:
            await reading.begin(tasks)
            auth = sign_connection_auth(place.bob.secret, "ws://relay", "challenge", place.now // SECOND, bytes(32))
            for frame in (["AUTH", json.loads(encode(auth))], ["QUEUE", "q", {"mesh": MESH}]):
                await reading.handle(read_frame(json.dumps(frame).encode()))
            while streams.open == 0 or heard[-1][2] != "LIVE":
                await asyncio.sleep(0)
            tasks.create_task(fail()).add_done_callback(replace)
            await asyncio.sleep(30)

    def replace(_: "asyncio.Task[None]") -> None:
        assert streams.open == 1
        streams.end(MESH, place.bob.member, Refusal.REPLACED_BY_NEWER_CONNECTION)
        heard.append("replaced")

    with pytest.raises(ExceptionGroup):
        asyncio.run(fall_apart())
    assert heard[-2:] == [("QUEUE", "q", "LIVE", place.relay.head().seq), "replaced"]
    assert streams.open == 0
    asyncio.run(place.relay.close())


def test_an_older_connection_does_not_take_what_a_newer_one_is_taking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where relays share a store, the last to take a queue has it: one that was cut must not come to that later."""
    place = Place(tmp_path / "relay.db", Settings()).settle()
    monkeypatch.setattr(type(place.relay), "is_shared", True)
    streams = Streams(place.relay)
    older, newer = streams.connect(), streams.connect()

    async def take() -> tuple[bool, bool, bool]:
        committed = asyncio.Event()
        monkeypatch.setattr(place.relay, "decide", lambda _: committed.wait())
        taking = asyncio.create_task(streams.take(MESH, place.bob.member, newer, lambda: False))
        await asyncio.sleep(0)
        meanwhile = [streams.is_outdated(MESH, place.bob.member, one) for one in (older, newer)]
        committed.set()
        await taking
        return meanwhile[0], meanwhile[1], streams.is_outdated(MESH, place.bob.member, older)

    assert asyncio.run(take()) == (True, False, False), "at the end nobody has it: it was not admitted"
    monkeypatch.undo()
    asyncio.run(place.relay.close())


@pytest.fixture
def world() -> Iterator[World]:
    """Whose relay has a neighbour on the same database: a second relay, of which the first hears nothing by itself."""
    made = World(Settings(queue=QueueSettings(window_messages=1, pause_ms=0)))
    yield made
    made.close()


def _at_neighbour(world: World, event: Event) -> None:
    place = world.place
    neighbour = Relay(place.engine, world.settings, Whose, clock=place.clock, random=place.random, inline=True)
    (answer,) = world.run(neighbour.publish([raw(event)]))
    assert answer.http_status == 201


def _full_window(world: World) -> Reader:
    """Bob at his queue, with one message that he has not acknowledged and one that waits for that."""
    bob = world.place.bob
    reader = Reader(world, bob)
    reader.let_through(2)
    world.publish(world.place.alice.message(bob), world.place.alice.message(bob))
    assert len(reader.messages) == 1
    return reader


def test_readers_are_woken_though_more_came_than_one_look_lists() -> None:
    """As after a time in which this relay had no connection to the database and its neighbours went on."""
    world = World(Settings())
    place = world.place
    bob = Reader(world, place.bob)
    bob.let_through(1)
    world.settle()
    before = world.run(place.relay.seen())
    _at_neighbour(world, place.alice.message(place.bob))
    with place.engine.write() as transaction:
        rows = (
            ("m", f"member-{n}", n, "x", "open", 1) for n in range(before.seq + 2, before.seq + 2 + queue.GROWN_MAX)
        )
        transaction.insert("delivery", ("mesh", "member", "seq", "message_id", "state", "expires_at"), rows)
    assert bob.messages == []
    with place.engine.read() as transaction:
        assert queue.grown_since(transaction, before.seq)[1] == [EVERYBODY]
    world.run(place.relay.wake_changed(before))
    assert len(bob.messages) == 1
    world.close()


def test_a_key_that_was_rotated_acknowledges_nothing_more(world: World) -> None:
    """Whoever stole it could empty the queue on a connection that has not heard of the rotation yet."""
    reader = _full_window(world)
    _at_neighbour(world, world.place.bob.rotate(secret_of("another key of bob")))
    reader.say("QUEUE", "q", "ACK", [message[0] for message in reader.messages])
    world.settle()
    assert reader.frames[-1][2] == "ERR"
    assert "stale_key" in reader.frames[-1][3]
    assert world.place.rows("SELECT count(*) FROM delivery WHERE state = 'open'") == [(2,)]
    assert world.streams.open == 0


@pytest.mark.parametrize(
    ("decide", "told"),
    [
        (lambda place: place.bob.rotate(secret_of("another key of bob")), "stale_key"),
        (lambda place: place.alice.revoke(place.bob), Refusal.MEMBER_REVOKED),
    ],
)
def test_a_reader_with_a_full_window_is_told_that_its_stream_is_over(world: World, decide: Any, told: str) -> None:
    reader = _full_window(world)
    _at_neighbour(world, decide(world.place))
    world.streams.wake([(world.place.bob.mesh, world.place.bob.member)])  # as by the look at what neighbours did
    world.settle()
    assert world.streams.open == 0
    assert reader.closed is told or told in reader.frames[-1][3]
