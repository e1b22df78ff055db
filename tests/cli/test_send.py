"""`holdfast send`, `inbox`, `mentions` and `trace`: two homes, a relay, and everything that a person types."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import following
from holdfast.cli.following import Following
from holdfast.device import arrivals
from holdfast.device import client as clients
from holdfast.device.arrivals import Stored
from holdfast.device.client import Client
from holdfast.device.home import Home
from holdfast.device.ipc import REQUESTS_MAX
from holdfast.device.ipc_link import RequestRefused
from holdfast.protocol import keys
from holdfast.protocol.payload import Payload
from holdfast.protocol.refusal import Refusal
from tests.cli.person import PATIENCE_S, Person
from tests.device.house import at_home, new_house
from tests.vanishing import vanishing

BUSY_S = 0.2  # for whoever asks meanwhile to be refused


@pytest.fixture
def awake(ann: Person, ben: Person) -> Iterator[tuple[Person, Person]]:
    """Ann and Ben with their daemons."""
    with ExitStack() as daemons:
        for person in (ann, ben):
            daemons.enter_context(person.daemon())
        for person in (ann, ben):
            person.until_connected(2)
        yield ann, ben


def _bodies(person: Person, count: int) -> list[str | None]:
    """What has arrived, as soon as it is so much."""

    def look(client: Client) -> list[str | None]:
        found = [message.body for message in client.inbox().messages]
        return found if len(found) >= count else []

    return person.until(look)


def _delivered(person: Person, name: str) -> Any:
    """The trace of a send that has arrived, once its receipt has, and the relay's answer, which that may have overtaken."""

    def look(client: Client) -> Any:
        found = client.trace(name)
        people = [found["sent"], *found["sent"]["recipients"]]
        rungs = {rung["what"] for person in people for rung in person["rungs"]}
        return found if {"relayed", "receipt"} <= rungs else None

    return person.until(look)


def test_nothing_comes_from_whom_one_has_blocked_and_the_senders_trace_says_so(ann: Person, ben: Person) -> None:
    with ben.daemon():
        ben.until_connected(2)
        ben.run("member", "block", "ann")
        with ann.daemon():
            ann.until_connected(2)
            assert ann.json("send", "ben", "unheard", "--id", "unheard")["status"] == "queued"  # nothing shows it here
            ann.until(lambda client: client.inspect("unheard").item.status == "done")
        with ann.daemon():  # what became of a send is asked for at every meeting, and else only now and then
            ann.until(lambda client: "blocked" in str(client.trace("unheard")["sent"]))
            ben.run("member", "unblock", "ann")
            ann.run("send", "ben", "heard")
            assert _bodies(ben, 1) == ["heard"]


def test_a_message_goes_from_home_to_home_and_its_trace_shows_every_rung_at_both_ends(
    awake: tuple[Person, Person],
) -> None:
    ann, ben = awake
    sent = ann.json("send", "ben", "lunch?", "--id", "lunch", "--meta", '{"n": 1}', "--priority", "now")
    assert sent == {"client_message_id": "lunch", "status": "queued", "duplicate": False}
    _bodies(ben, 1)
    (message,) = ben.json("inbox")["messages"]
    assert (message["body"], message["meta"], message["priority"]) == ("lunch?", {"n": 1}, "now")
    assert (message["sender_name"], message["client_message_id"]) == ("ann", "lunch")
    told = _delivered(ann, "lunch")
    assert [rung["what"] for rung in told["sent"]["rungs"]] == ["accepted", "attempted", "relayed"]
    assert told["sent"]["state"] == "delivered"
    assert ben.json("inbox", "ack", message["id"]) == {"applied": [message["id"]], "already": [], "unknown": []}
    received = ben.json("trace", "lunch")["received"]
    assert [(one["state"], one["rungs"][0]["what"]) for one in received] == [("applied", "stored")]
    shown = ann.says("trace", "lunch")
    assert "sent lunch to ben: delivered" in shown
    assert shown.count("\n") >= 5
    assert "applied" in ben.says("trace", "lunch")
    again = ann.json("send", "ben", "lunch?", "--id", "lunch", "--meta", '{"n": 1}', "--priority", "now")
    assert (again["duplicate"], again["broker_message_id"]) == (True, told["sent"]["broker_message_id"])
    assert "belongs to an earlier request" in ann.fails(4, "send", "ben", "dinner?", "--id", "lunch")
    assert len(ben.json("inbox")["messages"]) == 1


def test_a_member_is_named_in_many_ways_and_the_message_may_come_from_stdin(awake: tuple[Person, Person]) -> None:
    ann, ben = awake
    pubkey = ben.json("daemon", "status")["member_pubkey"]
    for to in ("ben", pubkey, pubkey.upper(), keys.npub(pubkey)):
        assert ann.json("send", to, f"to {to}")["status"] == "queued"
    piped = subprocess.run(
        ann.command("send", "ben", "-", "--json"),
        input="line one\nline two\n",
        capture_output=True,
        text=True,
        env=ann.environment,
    )
    assert json.loads(piped.stdout)["status"] == "queued"
    assert _bodies(ben, 5)[-1] == "line one\nline two\n"
    assert "no member is called" in ann.fails(3, "send", "nobody", "x")
    assert "no topic" in ann.fails(3, "send", "@nowhere", "x")


def test_a_topic_is_posted_to_and_mentions_are_found(awake: tuple[Person, Person]) -> None:
    ann, ben = awake
    ann.run("topic", "create", "news")
    ben.run("topic", "subscribe", "news")
    ann.run("topic", "grant")
    ben.until(lambda client: client.topics().topics[0].key == "ready")
    ann.run("topic", "subscribe", "news")
    ann.run("send", "@news", "hello ben", "--mention", "ben")
    ann.run("send", "@news", "hello all")
    _bodies(ben, 2)
    posted = ben.json("inbox", "--topic", "news")["messages"]
    assert [(message["body"], message["topic"]) for message in posted] == [("hello ben", "news"), ("hello all", "news")]
    assert [message["body"] for message in ben.json("mentions")["messages"]] == ["hello ben"]
    assert "ann @news" in ben.says("inbox")


def test_a_scheduled_send_is_listed_and_can_be_taken_back(awake: tuple[Person, Person]) -> None:
    ann, _ = awake
    at = (datetime.now(UTC) + timedelta(days=30)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    ann.json("send", "ben", "too early", "--id", "early", "--at", at)
    ann.run("send", "ben", "at once", "--id", "now")
    listed = ann.says("outbox", "list")
    assert "scheduled" in listed
    assert f"leaves at {at}" in listed
    assert "1 scheduled" in listed
    (waiting,) = ann.json("outbox", "list", "--status", "scheduled", "--to", "ben")["scheduled"]
    assert waiting["client_message_id"] == "early"
    assert ann.json("outbox", "list", "--status", "scheduled")["items"] == []
    assert ann.json("outbox", "list", "--status", "pending")["scheduled"] == []
    assert f"early is cancelled: it was to leave at {at}" in ann.says("outbox", "cancel", "early")
    assert ann.json("outbox", "cancel", "early")["cancelled_at"] is not None  # which it is
    assert ann.json("outbox", "list", "--status", "all")["scheduled"] == []
    assert "can be cancelled" in ann.fails(4, "outbox", "cancel", "now")
    assert json.loads(ann.fails(3, "outbox", "cancel", "nobody", "--json"))["error"] == "not_found"
    assert "cancelled" in ann.says("trace", "early")


def test_a_reply_and_a_time_are_kept_and_a_scheduled_send_waits(awake: tuple[Person, Person]) -> None:
    ann, ben = awake
    ann.run("send", "ben", "now", "--reply-to", "earlier", "--object-id", "ab" * 32)
    later = ("much later", "--at", (datetime.now(UTC) + timedelta(days=1)).isoformat(), "--id", "tomorrow")
    ann.run("send", "ben", *later)
    again = ann.json("send", "ben", *later)
    assert again["client_message_id"] == "tomorrow", "an absolute time means the same when it is said again"
    _bodies(ben, 1)
    (message,) = ben.json("inbox")["messages"]
    assert (message["body"], message["reply_to"], message["object_id"]) == ("now", "earlier", "ab" * 32)
    assert "not before 20" in ann.says("trace", "tomorrow")
    soon = ann.json("send", "ben", "in a second", "--at", "+1s")
    assert soon["status"] == "queued"
    assert _bodies(ben, 2) == ["now", "in a second"]


def test_what_a_command_cannot_mean_is_said_before_anything_is_sent(ann: Person) -> None:
    meant = {
        ("--meta", "{"): "--meta is not JSON",
        ("--meta", "[]"): "--meta is not a JSON object",
        ("--at", "tomorrow"): "is not a time",
        ("--id", "x", "--at", "+10m"): "--at +10m is another time whenever it is said. With --id give an absolute one",
        ("--id", "x", "--expires", "+1h"): "With --id give an absolute one",
        ("--priority", "urgent"): "urgent",
    }
    with ann.daemon():
        for options, reason in meant.items():
            assert reason in ann.fails(2, "send", "ann", "x", *options)
        assert ann.json("outbox", "list")["items"] == []


def test_a_body_that_is_not_utf_8_is_said_before_anything_is_sent(ann: Person) -> None:
    with ann.daemon():
        for body in (b"-", b"caf\xe9"):  # from standard input, and as an argument
            command = [*(word.encode() for word in ann.command("send", "ann")), body]
            done = subprocess.run(command, input=b"caf\xe9", capture_output=True, env=ann.environment)
            assert done.returncode == 2
            assert b"Traceback" not in done.stderr
            assert b"the body must be UTF-8, and its byte 3 is not" in done.stderr
        assert ann.json("outbox", "list")["items"] == []


def test_a_send_that_a_daemon_took_before_it_vanished_can_be_repeated_as_the_command_says(tmp_path: Path) -> None:
    ann = Person(tmp_path / "ann")
    ann.home.mkdir()
    with vanishing(ann.home / "daemon.sock") as taken:
        said = ann.fails(5, "send", "ben", "once", "--at", "+1d")
    asked = json.loads(taken[0].partition(b"\r\n\r\n")[2])
    name, at = asked["client_message_id"], asked["not_before"]
    assert f"The message may have been taken as {name}; repeat the command with `--id {name} --at {at}`." in said
    assert "Start one" not in said


@pytest.mark.parametrize("meta", ['{"a": NaN}', '{"a": 1e999}', "[" * 5_000, '{"a": 1} x'])
def test_what_is_not_quite_json_is_refused_and_sent_as_nothing_else(ann: Person, meta: str) -> None:
    assert "--meta is not JSON" in ann.fails(2, "send", "ann", "x", "--meta", meta)


def test_json_that_is_not_utf_8_is_refused(ann: Person) -> None:
    command = [*(word.encode() for word in ann.command("send", "ann", "x", "--meta")), b'{"a": "caf\xe9"}']
    done = subprocess.run(command, capture_output=True, env=ann.environment)
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    assert b"--meta is not JSON" in done.stderr


def test_without_a_daemon_the_command_says_what_to_do(ann: Person) -> None:
    for command in (("send", "ann", "x"), ("inbox",), ("mentions",), ("trace", "x"), ("outbox", "list")):
        assert "holdfast daemon up" in ann.fails(5, *command)
        assert json.loads(ann.fails(5, *command, "--json"))["error"] == "no_daemon"


def test_what_arrives_can_be_followed(awake: tuple[Person, Person]) -> None:
    ann, ben = awake
    ann.run("send", "ben", "before")
    _bodies(ben, 1)
    follower = subprocess.Popen(
        ben.command("inbox", "--follow", "--json"),
        env=ben.environment,
        stdout=subprocess.PIPE,
        text=True,
        # A shell in the background has it ignored, and nothing else runs here.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert follower.stdout is not None
    try:
        ben.until(lambda client: "event_streams 1.0" in _metrics(ben))
        for body in ("one", "two"):
            ann.run("send", "ben", body)
        assert [json.loads(follower.stdout.readline())["body"] for _ in range(2)] == ["one", "two"]
        follower.send_signal(signal.SIGINT)
        assert follower.wait(PATIENCE_S) == 130
    finally:
        follower.kill()
        follower.wait()
        follower.stdout.close()


def test_what_is_followed_is_shown_again_when_it_can_be_read(tmp_path: Path) -> None:
    with new_house(tmp_path / "home") as house:
        ben = Person(tmp_path / "home")
        old, news = (
            house.store(house.arrival(event, body=None))[0]
            for event in (house.bob.message(house.me, b"old"), house.bob.post("news", b"news"))
        )

        def read(stored: Stored, body: bytes) -> None:
            opened = [(str(stored.id), Payload(body=body))]
            house.do(lambda tx: arrivals.reopen(tx, house.facts, house.now, opened))

        following = [_following(ben), _following(ben, "--topic", "news"), _following(ben, "--after", "1")]
        with ExitStack() as followers:
            every, of_news, after_one = (followers.enter_context(each) for each in following)
            ben.until(lambda client: "event_streams 3.0" in _metrics(ben))
            assert after_one() == (news.id, "unreadable", None)
            read(old, b"old")
            read(news, b"news")
            house.store(house.arrival(house.bob.message(house.me, b"new"), body=b"new"))
            for body in ("old", "news", "new"):
                assert every()[2] == body
            assert of_news() == (news.id, "stored", "news")
            for body in ("news", "new"):
                assert after_one()[2] == body, "what came before was not asked for"


def test_what_was_opened_before_it_was_printed_is_shown_once(tmp_path: Path) -> None:
    with new_house(tmp_path / "home") as house, house.client() as client:
        following = Following(client, {"since": None})
        seq = client.health().seq
        (stored,) = house.store(house.arrival(house.bob.message(house.me, b"x"), body=None))
        opened = [(str(stored.id), Payload(body=b"x"))]
        house.do(lambda tx: arrivals.reopen(tx, house.facts, house.now, opened))
        shown = [*following.new()]
        said = client.events(after=seq, kinds=("opened",))
        shown += following.opened(next(event.data for event in said if event.kind == "opened"))
    assert [message.body for message in shown] == ["x"]


def test_a_daemon_that_is_busy_at_the_wrong_moment_ends_no_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is shown twice, and nothing is left out."""
    monkeypatch.setattr(clients, "RECONNECT_WAIT_S", 0.01)
    with new_house(tmp_path / "home") as house, house.client() as client, ThreadPoolExecutor(1) as follower:
        shown = Following(client, {"since": None}).messages()

        def seen_while_busy(happens: Callable[[], object]) -> str | None:
            """What is shown next; the daemon answers nothing for a moment after this has happened."""
            house.service.app.under_way += REQUESTS_MAX
            happens()
            message = follower.submit(next, shown)
            time.sleep(BUSY_S)
            house.service.app.under_way -= REQUESTS_MAX
            return message.result(PATIENCE_S).body

        def receive(body: bytes) -> None:
            house.store(house.arrival(house.bob.message(house.me, body), body=body))

        def read() -> None:
            opened = [(str(sealed.id), Payload(body=b"sealed"))]
            house.do(lambda tx: arrivals.reopen(tx, house.facts, house.now, opened))

        (sealed,) = house.store(house.arrival(house.bob.message(house.me, b"sealed"), body=None))
        assert next(shown).status == "unreadable"
        assert seen_while_busy(lambda: receive(b"when the stream is opened")) == "when the stream is opened"
        assert seen_while_busy(lambda: receive(b"when the inbox is read")) == "when the inbox is read"
        assert seen_while_busy(read) == "sealed"
        assert seen_while_busy(lambda: receive(b"last")) == "last"


def test_a_daemon_that_is_gone_between_two_pages_ends_no_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAGE_ROWS", 1)
    monkeypatch.setattr(clients, "RECONNECT_WAIT_S", 0.01)
    with Client(home=tmp_path / "home") as client, ThreadPoolExecutor(1) as follower:
        with new_house(tmp_path / "home") as house:
            shown = Following(client, {"since": None}).messages()
            for body in (b"one", b"two"):
                house.store(house.arrival(house.bob.message(house.me, body), body=body))
            assert next(shown).body == "one"
        message = follower.submit(next, shown)
        time.sleep(BUSY_S)
        with at_home(Home(tmp_path / "home")):
            assert message.result(PATIENCE_S).body == "two"


def test_a_follower_ends_where_the_home_was_put_back(tmp_path: Path) -> None:
    """What arrives there has numbers that were others' before, and would be taken for what was shown."""
    home, copy = tmp_path / "home", tmp_path / "copy"
    with Client(home=home) as client:
        with new_house(home) as house:
            pass
        shutil.copytree(home, copy)
        with at_home(Home(home)) as house:
            shown = Following(client, {"since": None}).messages()
            house.store(house.arrival(house.bob.message(house.me, b"one"), body=b"one"))
            assert next(shown).body == "one"
        shutil.rmtree(home)
        copy.rename(home)
        with at_home(Home(home)), pytest.raises(RequestRefused) as refused:
            next(shown)
    assert refused.value.refusal is Refusal.CURSOR_AHEAD


@contextmanager
def _following(person: Person, *options: str) -> Iterator[Callable[[], tuple[str, str, str | None]]]:
    """A follower; each call waits for what it prints next: id, status and body."""
    command = person.command("inbox", "--follow", "--json", *options)
    process = subprocess.Popen(command, env=person.environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = process.stdout

    def read() -> tuple[str, str, str | None]:
        message = json.loads(lines.readline())
        return message["id"], message["status"], message["body"]

    try:
        yield read
    finally:
        process.kill()
        process.wait()
        lines.close()


def _metrics(person: Person) -> str:
    curl = ["curl", "-s", "--unix-socket", str(person.home / "daemon.sock"), "http://localhost/v1/metrics"]
    return subprocess.run(curl, capture_output=True, text=True, check=True).stdout


def test_a_name_that_nothing_has_is_not_found(ann: Person) -> None:
    with ann.daemon():
        assert "not in the inbox" in ann.run("inbox", "ack", "no-such-id", code=3).stderr
        assert "nothing was sent or received here" in ann.fails(3, "trace", "no-such-id")
        assert "no operation" in ann.fails(3, "outbox", "inspect", "no-such-id")
