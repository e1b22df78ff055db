"""`holdfast.Client` against a real daemon: sends that lose their answer, and handlers that fail, die and succeed."""

import gc
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import holdfast
from holdfast.device import client as clients
from holdfast.device import handling, operations
from holdfast.device.client import Client
from holdfast.device.device import at_work
from holdfast.device.feed_client import FeedClient
from holdfast.device.home import Home
from holdfast.device.ipc import REQUESTS_MAX
from holdfast.device.ipc_documents import Message
from holdfast.device.ipc_events import STREAMS_MAX
from holdfast.device.ipc_link import DaemonLost, HomeTooLong, NoDaemon, RequestRefused
from holdfast.protocol import keys
from holdfast.protocol.history import Kind
from holdfast.protocol.refusal import Refusal, Refused
from tests.device.house import House, at_home, furnish, new_house
from tests.vanishing import read_request, vanishing


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with new_house(tmp_path / "home") as made:
        yield made


@pytest.fixture
def client(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(handling, "RETRY_WAIT_S", 0.001)
    with house.client() as opened:
        yield opened


def _receive(house: House, *bodies: str) -> list[str]:
    arrived = [house.arrival(house.bob.message(house.me, body.encode()), body=body.encode()) for body in bodies]
    return [str(stored.id) for stored in house.store(*arrived)]


def test_the_package_has_it() -> None:
    assert holdfast.Client is Client
    assert issubclass(holdfast.SendUnanswered, holdfast.DaemonLost)


def test_where_no_daemon_is_it_says_so(tmp_path: Path) -> None:
    with Client(home=tmp_path) as client, pytest.raises(NoDaemon, match="holdfast daemon up"):
        client.health()
    with pytest.raises(ValueError, match="not both"):
        Client(home=tmp_path, socket=tmp_path / "x")


def test_a_client_stays_with_its_home_when_the_program_changes_its_directory(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(house.device.home.path.parent)
    with Client(home=house.device.home.path.name) as client, Client(socket=Path("home/daemon.sock")) as other:
        monkeypatch.chdir(tmp_path.parent)
        assert client.health().member == other.health().member == house.facts.member


def test_a_send_is_in_the_log_when_it_returns(house: House, client: Client) -> None:
    sent = client.send("bob", "hello", meta={"a": 1}, priority="now", mentions=["carol"])
    row = house.item(sent.client_message_id)
    assert (sent.status, row.status, row.priority, row.mentions) == ("queued", "pending", "now", (house.carol.member,))
    content = house.content(row)
    assert (content.body, content.meta) == (b"hello", b'{"a":1}')


def test_a_refusal_is_raised_with_all_that_was_said(house: House, client: Client) -> None:
    with pytest.raises(RequestRefused) as nobody:
        client.send("nobody", "hello")
    assert nobody.value.refusal is Refusal.DESTINATION_UNKNOWN
    client.send("bob", "hello", client_message_id="mine")
    with pytest.raises(RequestRefused) as conflict:
        client.send("bob", "other", client_message_id="mine")
    assert conflict.value.refusal is Refusal.IDEMPOTENCY_KEY_REUSED
    assert conflict.value.document["conflict"] == "outbox_pending_fingerprint_mismatch"


@pytest.mark.parametrize("given", [float("nan"), float("inf"), b"bytes", {"deep": [b"bytes"]}, object(), "\udcff"])
def test_what_would_arrive_as_something_else_is_refused_and_sends_nothing(
    house: House, client: Client, given: Any
) -> None:
    before = house.rows("SELECT count(*) FROM operation_log")
    for message, meta in ((given, None), ("hello", {"a": given})):
        with pytest.raises(Refused) as caught:
            client.send("bob", message, meta=meta)
        assert caught.value.refusal is Refusal.MALFORMED
    assert house.rows("SELECT count(*) FROM operation_log") == before


class Swallower:
    """Stands before a daemon's socket, passes requests on, and keeps the first answers to itself."""

    def __init__(self, path: Path, target: str, losses: int) -> None:
        self.losses = losses
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with near, socket.socket(socket.AF_UNIX) as far:
                asked = read_request(near)
                if not asked:
                    continue
                far.connect(self._target)
                far.sendall(asked)
                answer = far.recv(65_536)  # so it was accepted
                if self.losses:
                    self.losses -= 1
                else:
                    # Else the client would ask again on this connection, perhaps before it sees that it has ended.
                    near.sendall(answer.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))

    def close(self) -> None:
        self._listener.close()


def test_a_send_whose_answer_was_lost_is_asked_for_again_and_sent_once(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "SEND_WAITS_S", (0.001,) * 3)
    between = Swallower(tmp_path / "between.sock", house.service.socket, losses=3)
    with Client(socket=tmp_path / "between.sock") as client:
        sent = client.send("bob", "hello")
        assert between.losses == 0
        between.losses = 4
        with pytest.raises(holdfast.SendUnanswered) as lost:
            client.send("bob", "hello again")
    between.close()
    assert house.item(sent.client_message_id).status == "pending"
    assert house.item(lost.value.client_message_id).status == "pending"
    found = house.rows("SELECT count(*) FROM operation_log WHERE destination_kind = 'dm'")
    assert found == [(2,)], "the second one is there once, too: its caller asks again under the same id or not at all"


def test_a_share_whose_answer_was_lost_is_asked_for_again_and_sent_once(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "SEND_WAITS_S", (0.001,) * 3)
    with FeedClient(socket=house.service.socket) as client:
        client.init()
    between = Swallower(tmp_path / "between.sock", house.service.socket, losses=3)
    with FeedClient(socket=tmp_path / "between.sock") as client:
        shared = client.share("bob")
        assert between.losses == 0
    between.close()
    found = house.rows("SELECT client_message_id FROM operation_log WHERE destination_kind = 'dm'")
    assert found == [(shared.client_message_id,)]


def test_a_send_that_a_daemon_took_before_it_vanished_is_told_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "SEND_WAITS_S", (0.001,) * 3)
    with vanishing(tmp_path / "gone.sock") as taken, Client(socket=tmp_path / "gone.sock") as client:
        with pytest.raises(holdfast.SendUnanswered) as lost:
            client.send("bob", "hello")
        with pytest.raises(NoDaemon):
            client.send("bob", "hello")
    name = lost.value.client_message_id
    assert f'"client_message_id":"{name}"'.encode() in taken[0]
    assert name in str(lost.value)
    assert lost.value.again().client_message_id == name


def test_a_daemon_that_vanishes_while_it_is_looked_for_leaves_no_socket_open(tmp_path: Path) -> None:
    for number in range(10):
        path = tmp_path / f"{number}.sock"
        with socket.socket(socket.AF_UNIX) as listener, Client(socket=path) as client:
            listener.bind(str(path))
            listener.listen()
            leaving = threading.Thread(target=_leave, args=(listener,), daemon=True)
            leaving.start()
            with pytest.raises((NoDaemon, DaemonLost)):
                client.health()
            leaving.join()
            with pytest.raises(NoDaemon):
                client.health()
    gc.collect()  # which tells of a socket that nobody has closed, and so fails this test


def _leave(listener: socket.socket) -> None:
    """Take one connection, and be gone."""
    connection, _ = listener.accept()
    listener.close()
    connection.close()


def test_many_streams_of_one_client_leave_room_for_its_requests(house: House) -> None:
    with Client(socket=house.service.socket, answer_timeout_s=5.0) as client, ExitStack() as streams:
        for _ in range(20):
            streams.enter_context(client._link.stream("/v1/events", {}, {}))
        assert client.health().mesh == house.facts.mesh


def test_a_daemon_that_comes_back_answers_the_send_that_it_took_before(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "SEND_WAITS_S", (0.05,) * 2_000)  # it comes back when it does
    monkeypatch.setattr(clients, "SEND_PATIENCE_S", 100.0)
    path, back = tmp_path / "between.sock", []
    with vanishing(path) as taken, Client(socket=path) as client:

        def return_soon() -> None:
            while not taken:
                threading.Event().wait(0.01)
            back.append(Swallower(path, house.service.socket, losses=0))

        returning = threading.Thread(target=return_soon, daemon=True)
        returning.start()
        sent = client.send("bob", "hello")
        returning.join()
    back[0].close()
    assert sent.client_message_id.encode() in taken[0]
    assert house.item(sent.client_message_id).status == "pending"


def test_a_home_whose_path_no_socket_can_have_is_told_so(tmp_path: Path) -> None:
    with Client(home=tmp_path / ("x" * 120)) as client, pytest.raises(HomeTooLong, match="too long") as told:
        client.health()
    assert "daemon up" not in str(told.value)


def test_handlers_get_messages_in_order_and_their_success_is_applied(house: House, client: Client) -> None:
    ids = _receive(house, "one", "two", "three")
    seen: list[tuple[str, str | None]] = []

    @client.on_message
    def act(message: Message) -> None:
        seen.append((message.id, message.body))

    client.run(until_idle=True)
    assert seen == list(zip(ids, ["one", "two", "three"], strict=True))
    assert all(house.message(name).applied_at for name in ids)
    assert [entry.kind for entry in house.entries()][-3:] == ["applied"] * 3
    client.run(until_idle=True)
    assert len(seen) == 3, "once in effect"


def test_a_handler_that_keeps_failing_parks_the_message_at_the_fifth_attempt_and_the_next_one_goes_on(
    house: House, client: Client
) -> None:
    bad, good = _receive(house, "bad", "good")
    tried: list[str] = []

    @client.on_message()
    def act(message: Message) -> None:
        tried.append(message.id)
        if message.id == bad:
            raise RuntimeError("no idea what to do")

    client.run(until_idle=True)
    assert tried == [bad] * 5 + [good]
    parked = house.message(bad)
    assert (parked.applied_at, parked.handler_attempts) == (None, 5)
    assert parked.last_error == "RuntimeError: no idea what to do"
    assert [message.id for message in client.inbox(parked=True).messages] == [bad]
    assert house.message(good).applied_at is not None
    client.run(until_idle=True)
    assert len(tried) == 6, "parked is parked"
    client.ack(bad)
    assert house.message(bad).applied_at is not None


@pytest.mark.parametrize("said", ["no file \udcff", "x" * 2_000_000], ids=["not UTF-8", "long"])
def test_a_handler_may_fail_with_words_that_no_request_can_carry(house: House, client: Client, said: str) -> None:
    bad, good = _receive(house, "bad", "good")

    @client.on_message
    def act(message: Message) -> None:
        if message.body == "bad":
            raise RuntimeError(said)

    client.run(until_idle=True)
    assert str(house.message(bad).last_error).startswith(f"RuntimeError: {said[:8]}")
    assert (house.message(bad).parked_at is not None, house.message(good).applied_at is not None) == (True, True)


def test_a_message_that_somebody_else_applies_while_its_handler_fails_is_left_and_the_next_one_goes_on(
    house: House, client: Client
) -> None:
    shared, own = _receive(house, "shared", "own")
    tried: list[str] = []

    @client.on_message
    def act(message: Message) -> None:
        tried.append(message.id)
        if message.id == shared:
            if len(tried) > 9:
                raise SystemExit  # so that a loop without end fails here
            with house.client() as other:
                other.ack(shared)
            raise RuntimeError("too late")

    client.run(until_idle=True)
    assert tried == [shared, own]
    assert house.message(shared).handler_attempts == 0
    assert house.message(own).applied_at is not None


def test_a_client_that_is_stopped_handles_nothing_more_and_leaves_what_failed_for_the_next_time(
    house: House, client: Client
) -> None:
    bad, later = _receive(house, "bad", "later")
    tried: list[str] = []

    @client.on_message
    def act(message: Message) -> None:
        tried.append(message.id)
        client.stop()
        raise RuntimeError("no idea what to do")

    client.run()
    assert tried == [bad]
    found = house.message(bad)
    assert (found.handler_attempts, found.parked_at) == (1, None)
    assert [message.id for message in client.inbox(unapplied=True).messages] == [bad, later]


def test_a_client_that_is_stopped_in_a_handler_that_succeeds_has_applied_that_message_and_no_other(
    house: House, client: Client
) -> None:
    first, later = _receive(house, "first", "later")
    client.on_message(lambda message: client.stop())
    client.run()
    assert house.message(first).applied_at is not None
    assert [message.id for message in client.inbox(unapplied=True).messages] == [later]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "RECONNECT_WAIT_S", 0.01)
    monkeypatch.setattr(handling, "TELL_WAIT_S", 0.01)


def _answer_nothing(house: House) -> None:
    house.service.app.under_way += REQUESTS_MAX


def _answer_again(house: House) -> None:
    house.service.app.under_way -= REQUESTS_MAX


def _told(event: str, logged: Sequence[Mapping[str, Any]]) -> list[str]:
    """The reasons of an event in the log."""
    return [entry["reason"] for entry in logged if entry["event"] == event]


@pytest.mark.usefixtures("impatient")
def test_while_the_daemon_is_busy_an_acknowledgement_is_repeated_and_its_handler_is_not(
    house: House, client: Client
) -> None:
    first, second = _receive(house, "one", "two")
    handled: list[str] = []

    @client.on_message
    def act(message: Message) -> None:
        handled.append(message.id)
        if message.id == first:
            _answer_nothing(house)
            threading.Timer(0.1, _answer_again, (house,)).start()
        else:
            client.stop()

    with capture_logs() as logged:
        client.run()
    assert handled == [first, second]
    assert house.message(first).applied_at is not None
    assert _told("the daemon is told again", logged)[0].startswith("daemon_busy")


@pytest.mark.usefixtures("impatient")
def test_while_the_daemon_is_busy_a_failure_is_told_again_and_no_handler_is_called(
    house: House, client: Client
) -> None:
    (name,) = _receive(house, "x")
    called: list[str] = []

    @client.on_message
    def first(message: Message) -> None:
        called.append("first")

    @client.on_message
    def second(message: Message) -> None:
        called.append("second")
        if called.count("second") == 1:
            _answer_nothing(house)
            threading.Timer(0.1, _answer_again, (house,)).start()
            raise RuntimeError("not yet")

    client.run(until_idle=True)
    assert called == ["first", "second", "second"]
    assert house.message(name).handler_attempts == 1


def test_an_acknowledgement_whose_answer_was_lost_is_repeated_and_the_message_is_applied_once(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handling, "TELL_WAIT_S", 0.01)
    (name,) = _receive(house, "x")
    handled: list[str] = []
    between = Swallower(tmp_path / "between.sock", house.service.socket, losses=0)
    with Client(socket=tmp_path / "between.sock") as client:

        @client.on_message
        def act(message: Message) -> None:
            handled.append(message.id)
            between.losses = 2

        client.run(until_idle=True)
    between.close()
    assert (handled, between.losses) == ([name], 0)
    assert [entry.kind for entry in house.entries()].count(Kind.APPLIED) == 1


def test_a_client_that_is_stopped_while_it_waits_for_the_daemon_ends_and_leaves_the_message_for_the_next_time(
    house: House, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handling, "TELL_WAIT_S", 3600.0)
    (name,) = _receive(house, "x")

    @client.on_message
    def act(message: Message) -> None:
        _answer_nothing(house)

    with capture_logs() as logged:
        worker = threading.Thread(target=client.run, daemon=True)
        worker.start()
        while not _told("the daemon is told again", logged):
            threading.Event().wait(0.01)
        client.stop()
        worker.join(30)
    _answer_again(house)
    assert not worker.is_alive()
    assert house.message(name).applied_at is None


@pytest.mark.usefixtures("impatient")
def test_a_running_client_that_is_refused_for_a_moment_says_so_and_goes_on(house: House, client: Client) -> None:
    handled: list[str] = []
    both = threading.Event()

    @client.on_message
    def act(message: Message) -> None:
        handled.append(message.id)
        if len(handled) == 2:
            both.set()

    worker = threading.Thread(target=client.run, daemon=True)
    with capture_logs() as logged:
        (first,) = _receive(house, "one")
        worker.start()
        while not house.message(first).applied_at:
            threading.Event().wait(0.01)
        _answer_nothing(house)
        (second,) = _receive(house, "two")
        while not _told("the daemon refuses; this goes on", logged):
            threading.Event().wait(0.01)
        _answer_again(house)
        assert both.wait(60)
        client.stop()
        worker.join(30)
    assert (handled, worker.is_alive()) == ([first, second], False)


def test_a_failure_that_passes_is_forgotten(house: House, client: Client) -> None:
    (name,) = _receive(house, "x")
    failures = [RuntimeError("not yet"), RuntimeError("nearly")]
    second: list[str] = []

    @client.on_message
    def act(message: Message) -> None:
        if failures:
            raise failures.pop(0)

    @client.on_message
    def note(message: Message) -> None:
        second.append(message.id)

    client.run(until_idle=True)
    assert second == [name], "what comes after the one that failed is called once it has succeeded"
    assert house.message(name).applied_at is not None


def test_a_handler_that_succeeded_is_not_called_again_for_anothers_failure(house: House, client: Client) -> None:
    _receive(house, "x")
    called = {"first": 0, "second": 0}

    @client.on_message
    def first(message: Message) -> None:
        called["first"] += 1

    @client.on_message
    def second(message: Message) -> None:
        called["second"] += 1
        if called["second"] < 3:
            raise RuntimeError("again")

    client.run(until_idle=True)
    assert called == {"first": 1, "second": 3}


def test_a_program_that_dies_in_a_handler_gets_the_same_message_again(house: House, client: Client) -> None:
    (name,) = _receive(house, "x")

    @client.on_message
    def act(message: Message) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.run(until_idle=True)
    assert house.message(name).applied_at is None
    seen: list[str] = []
    with house.client() as reborn:
        reborn.on_message(lambda message: seen.append(message.id))
        reborn.run(until_idle=True)
    assert seen == [name]


def test_handlers_choose_by_topic_sender_and_priority_and_the_rest_stays_for_others(
    house: House, client: Client
) -> None:
    direct = house.arrival(house.bob.message(house.me, b"direct"), body=b"direct")
    posted = house.arrival(house.bob.post("news", b"posted"), body=b"posted")
    carols = house.arrival(house.carol.message(house.me, b"carols"), house.carol, b"carols")
    house.store(direct, posted, carols)
    seen: dict[str, list[str | None]] = {"news": [], "carol": [], "urgent": []}
    client.on_message(topic="news")(lambda message: seen["news"].append(message.body))
    client.on_message(sender="carol")(lambda message: seen["carol"].append(message.body))
    client.on_message(priority="now")(lambda message: seen["urgent"].append(message.body))
    client.run(until_idle=True)
    assert seen == {"news": ["posted"], "carol": ["carols"], "urgent": []}
    assert [message.body for message in client.inbox(unapplied=True).messages] == ["direct"]


def test_handlers_name_topics_and_senders_in_every_way_that_the_inbox_does(house: House, client: Client) -> None:
    posted = house.arrival(house.bob.post("news", b"posted"), body=b"posted")
    house.store(posted)
    seen: list[str] = []
    client.on_message(topic="@news")(lambda message: seen.append("topic"))
    for who in ("bob", house.bob.member, house.bob.key, house.bob.key.upper(), keys.npub(house.bob.key)):
        client.on_message(sender=who)(lambda message: seen.append("bob"))
    for who in ("carol", keys.npub(house.carol.key)):
        client.on_message(sender=who)(lambda message: seen.append("carol"))
    client.run(until_idle=True)
    assert seen == ["topic", *["bob"] * 5]
    house.store(house.arrival(house.carol.message(house.me, b"hers"), house.carol, b"hers"))
    client.run(until_idle=True)
    assert seen[6:] == ["carol"] * 2, "who had sent nothing yet is known, too"


@pytest.mark.parametrize("who", ["nobody", "@news"])
def test_a_handler_of_nobodys_messages_is_refused_when_it_is_registered(client: Client, who: str) -> None:
    with pytest.raises(Refused):
        client.on_message(sender=who)


def test_what_could_not_be_read_is_handled_when_its_key_has_come(house: House, client: Client) -> None:
    from holdfast.device import arrivals
    from holdfast.protocol.payload import Payload

    sealed = house.arrival(house.bob.message(house.me, b"sealed"), body=None)
    (stored,) = house.store(sealed)
    (later,) = _receive(house, "later")
    seen: list[str | None] = []
    done = threading.Event()

    @client.on_message
    def act(message: Message) -> None:
        seen.append(message.body)
        if message.body == "opened":
            client.stop()
            done.set()

    worker = threading.Thread(target=client.run, daemon=True)
    worker.start()
    while not house.message(later).applied_at:
        threading.Event().wait(0.01)
    assert seen == ["later"]
    house.do(lambda tx: arrivals.reopen(tx, house.facts, house.now, [(str(stored.id), Payload(body=b"opened"))]))
    assert done.wait(60)
    assert seen == ["later", "opened"]
    worker.join(30)
    assert not worker.is_alive()


def test_a_client_that_runs_now_and_then_handles_what_it_had_to_leave_before(house: House, client: Client) -> None:
    from holdfast.device import arrivals
    from holdfast.protocol.payload import Payload

    (stored,) = house.store(house.arrival(house.bob.message(house.me, b"sealed"), body=None))
    house.store(house.arrival(house.carol.message(house.me, b"hers"), house.carol, b"hers"))
    _receive(house, "his")
    seen: list[str | None] = []
    client.on_message(sender="bob")(lambda message: seen.append(message.body))
    client.run(until_idle=True)
    assert seen == ["his"]
    house.do(lambda tx: arrivals.reopen(tx, house.facts, house.now, [(str(stored.id), Payload(body=b"opened"))]))
    client.on_message(sender="carol")(lambda message: seen.append(message.body))
    client.run(until_idle=True)
    assert seen == ["his", "opened", "hers"]


def test_a_running_client_handles_what_arrives_later(house: House, client: Client) -> None:
    seen: list[str | None] = []
    three = threading.Event()

    @client.on_message
    def act(message: Message) -> None:
        seen.append(message.body)
        if len(seen) == 3:
            client.stop()
            three.set()

    worker = threading.Thread(target=client.run, daemon=True)
    worker.start()
    for body in ("one", "two", "three"):
        _receive(house, body)
    assert three.wait(60)
    assert seen == ["one", "two", "three"]
    worker.join(30)
    assert not worker.is_alive()


def test_a_running_client_goes_on_in_a_home_that_was_restored_to_before_it_began(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    furnish(home)
    with at_work(home) as device:
        device.do(operations.mark_backup)
    shutil.copyfile(home.database, tmp_path / "earlier.db")
    seen: list[str | None] = []
    after = threading.Event()
    client = Client(home=home.path)

    @client.on_message
    def act(message: Message) -> None:
        seen.append(message.body)
        if message.body == "after":
            after.set()

    worker = threading.Thread(target=client.run, daemon=True)
    with at_home(home) as house:
        worker.start()
        (before,) = _receive(house, "before")
        while not house.message(before).applied_at:
            threading.Event().wait(0.01)
    shutil.copyfile(tmp_path / "earlier.db", home.database)
    with at_home(home) as house:
        _receive(house, "after")
        assert after.wait(60)
        client.stop()
        worker.join(30)
    assert (seen, worker.is_alive()) == (["before", "after"], False)
    client.close()


def test_a_running_client_goes_on_in_a_home_that_was_restored_to_before_the_message_that_it_fails(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path / "home")
    furnish(home)
    with at_work(home) as device:
        device.do(operations.mark_backup)
    shutil.copyfile(home.database, tmp_path / "earlier.db")
    began, restored, after = threading.Event(), threading.Event(), threading.Event()
    client = Client(home=home.path)

    @client.on_message
    def act(message: Message) -> None:
        if message.body == "after":
            after.set()
            return
        began.set()
        restored.wait(60)
        raise RuntimeError("not yet")

    worker = threading.Thread(target=client.run, daemon=True)
    with at_home(home) as house:
        worker.start()
        _receive(house, "before")
        assert began.wait(60)
    shutil.copyfile(tmp_path / "earlier.db", home.database)
    with at_home(home) as house:
        restored.set()
        _receive(house, "after")
        assert after.wait(60)
        client.stop()
        worker.join(30)
    assert not worker.is_alive()
    client.close()


def test_who_follows_documents_goes_on_when_the_daemon_is_back(tmp_path: Path) -> None:
    home, found = Home(tmp_path / "home"), []
    furnish(home)
    with FeedClient(home=home.path) as notes:
        with at_home(home):
            notes.init()
            for name in ("list", "plan"):
                notes.put(name, "milk")
            changes = notes.changes(after=0)
            assert next(changes).document.name == "list"
        # The client has read the next change already, and asks for its document while nobody answers.
        following = threading.Thread(target=lambda: found.append(next(changes)), daemon=True)
        following.start()
        following.join(0.2)
        with at_home(home):
            following.join(30)
    assert [change.document.name for change in found] == ["plan"]


def test_events_go_on_though_the_daemon_is_busy_when_they_are_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "RECONNECT_WAIT_S", 0.05)
    home, found = Home(tmp_path / "home"), []
    furnish(home)
    with Client(home=home.path) as client:
        with at_home(home) as house:
            house.sent()
            events = (event.seq for event in client.events(after=0, kinds=("enqueued",)) if event.seq is not None)
            before = [next(events) for _ in range(2)]
        with at_home(home) as house, capture_logs() as logs, ExitStack() as others, house.client() as other:
            for _ in range(STREAMS_MAX):
                others.enter_context(other._link.stream("/v1/events", {}, {}))
            following = threading.Thread(target=lambda: found.append(next(events)), daemon=True)
            following.start()
            while following.is_alive() and "the daemon refuses; this goes on" not in {log["event"] for log in logs}:
                threading.Event().wait(0.01)
            with pytest.raises(RequestRefused):  # who begins is told at once
                next(other.events())
            others.close()
            house.sent()
            following.join(30)
    assert (before, found) == ([1, 3], [4]), logs


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029"])
def test_events_say_what_a_relay_says_whatever_is_in_it(house: House, client: Client, separator: str) -> None:
    said = f"it closed the connection (4000 a{separator}b)"
    house.loop.call_soon_threadsafe(house.service.daemon._disconnected, said)
    while client.health().last_error != said:
        threading.Event().wait(0.01)
    told = next(client.events(after=0))
    assert (told.kind, told.data["detail"]) == ("disconnected", said)
