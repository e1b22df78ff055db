"""A running relay from outside: one effect whatever happens between question and answer."""

import http.client
import json
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.event import Event
from holdfast.relay.database import open_to_read
from holdfast.store.engine import Engine
from tests.people import raw
from tests.relay import store
from tests.relay.running import ANSWER_S, RunningRelay, running

ROUNDS = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "4"))
ACCEPTS = [30_000, pytest.param(100_000, marks=pytest.mark.long)]
WARM_ACCEPTS = 10_000
YES_MIN = 15  # of every round, before it ends
GENEROUS = "[limits]\nqueue_messages_max = 1000000\nmessages_burst = 1000000\nmessages_per_s = 100000\n"


def _publish_all(relay: RunningRelay, events: list[Event]) -> list[dict[str, Any]]:
    body = b"[" + b",".join(raw(event) for event in events) + b"]"
    answered = relay.ask("POST", "/v1/messages", body)
    assert answered.status == 200, answered.body
    answers: list[dict[str, Any]] = answered.document["answers"]
    return answers


def test_one_id_published_by_many_at_once_is_one_message_with_one_answer(tmp_path: Path) -> None:
    with running(tmp_path / "relay") as relay:
        relay.found_mesh("alice", "bob")
        event = relay.person("alice").message(relay.person("bob"))
        answers: list[dict[str, Any]] = []
        statuses: list[int] = []

        def over_http() -> None:
            answered = relay.publish(event)
            statuses.append(answered.status)
            answers.append(answered.document)

        def over_websocket() -> None:
            with relay.websocket() as socket:
                socket.send(json.dumps(["EVENT", json.loads(raw(event))]))
                word, event_id, accepted, text = json.loads(socket.recv(60))
                assert (word, event_id, accepted) == ("OK", event.id, True)
                statuses.append(200 if text.startswith("duplicate: ") else 201)
                answers.append(json.loads(text.removeprefix("duplicate: ")))

        threads = [threading.Thread(target=work) for work in [over_http] * 10 + [over_websocket] * 6]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200] * 15 + [201]
        said = {(a["broker_message_id"], a["history_id"], a["client_message_id"], a["log_id"]) for a in answers}
        assert len(said) == 1
        assert relay.head_seq() == 4


def test_a_crash_at_the_commit_is_healed_by_asking_again(tmp_path: Path) -> None:
    """The relay is killed the moment its commit is seen from outside; whether the answer was on its way, nobody read it."""
    data = tmp_path / "relay"
    with running(data) as relay:
        relay.found_mesh("alice", "bob")
        event = relay.person("alice").message(relay.person("bob"))
        body = raw(event)
        watching = open_to_read(store.where(data / "relay.db"))
        with socket.create_connection(relay.address) as connection:
            head = f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            while not (committed := _committed(watching, event)):
                pass
            relay.stop(signal.SIGKILL)
        watching.close()
    with running(data) as relay:
        again = relay.publish(event)
        assert again.status == 200
        assert (again.document["broker_message_id"], again.document["history_id"]) == committed[0]
        assert again.document["anchor"]["seq"] >= again.document["history_id"]


def _committed(engine: Engine, event: Event) -> list[tuple[Any, ...]]:
    with engine.read() as transaction:
        statement = "SELECT message_id, seq FROM message WHERE event_id = :event_id"
        return transaction.rows(statement, {"event_id": bytes.fromhex(event.id)})


def test_every_yes_has_an_anchor_that_covers_it(tmp_path: Path) -> None:
    """Many ask for the same event while others are accepted: a repetition may be found before its first answer left."""
    with running(tmp_path / "relay", GENEROUS) as relay:
        relay.found_mesh("alice", "bob")
        answers: list[dict[str, Any]] = []

        def ask(event: Event) -> None:
            answers.append(relay.publish(event).document)

        for _ in range(25):
            event = relay.person("alice").message(relay.person("bob"))
            threads = [threading.Thread(target=ask, args=(event,)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(answers) == 150
        assert [a for a in answers if a["anchor"]["seq"] < a["history_id"]] == []


def test_every_yes_survives_kill_9_under_load(tmp_path: Path) -> None:
    data, luck = tmp_path / "relay", random.Random(4)
    said: dict[bytes, str] = {}
    people: dict[str, Any] = {}
    for round_number in range(ROUNDS):
        with running(data, GENEROUS) as relay:
            relay.people = people
            if round_number == 0:
                relay.found_mesh("alice", "bob", "carol")
            _check_all(relay, dict(list(said.items())[-1000:]))
            _load_until_killed(relay, said, luck.uniform(0.1, 0.5))
    with running(data, GENEROUS) as relay:
        _check_all(relay, said)
    assert len(said) >= ROUNDS * YES_MIN


def _load_until_killed(relay: RunningRelay, said: dict[bytes, str], delay_s: float) -> None:
    def work(sender: str, to: str) -> None:
        try:
            while True:
                events = [relay.person(sender).message(relay.person(to)) for _ in range(5)]
                for event, answer in zip(events, _publish_all(relay, events), strict=True):
                    assert answer["status"] == 201, answer
                    said[raw(event)] = answer["broker_message_id"]
        except (OSError, json.JSONDecodeError, http.client.HTTPException):
            return  # killed: whatever was not answered is open

    threads = [
        threading.Thread(target=work, args=pair) for pair in (("alice", "bob"), ("bob", "carol"), ("carol", "bob"))
    ]
    enough = len(said) + YES_MIN
    for thread in threads:
        thread.start()
    give_up_at = time.monotonic() + ANSWER_S
    while len(said) < enough and time.monotonic() < give_up_at:  # a busy machine may take its time to begin
        time.sleep(0.005)
    time.sleep(delay_s)
    relay.stop(signal.SIGKILL)
    for thread in threads:
        thread.join()


def _check_all(relay: RunningRelay, said: dict[bytes, str]) -> None:
    events = list(said)
    for start in range(0, len(events), 100):
        page = events[start : start + 100]
        answers = relay.ask("POST", "/v1/messages", b"[" + b",".join(page) + b"]").document["answers"]
        assert [(a["status"], a["broker_message_id"]) for a in answers] == [(200, said[event]) for event in page]


@pytest.mark.timeout(1200)  # very many accepts, on a machine that may be busy
@pytest.mark.parametrize("accepts", ACCEPTS)
def test_memory_does_not_grow_with_what_was_accepted(tmp_path: Path, on_store: str, accepts: int) -> None:
    if on_store == store.POSTGRES and "HOLDFAST_SCALE" not in os.environ:
        pytest.skip("the same memory, and minutes of a server's work: make scale")
    with running(tmp_path / "relay", GENEROUS) as relay:
        relay.found_mesh("alice", "bob")
        alice, bob = relay.person("alice"), relay.person("bob")
        warm = 0
        for start in range(0, accepts, 100):
            answers = _publish_all(relay, [alice.message(bob, b"x" * 200) for _ in range(100)])
            assert {answer["status"] for answer in answers} == {201}
            if start + 100 == WARM_ACCEPTS:
                warm = relay.memory_bytes()
        assert relay.head_seq() == accepts + 3
        assert relay.memory_bytes() <= 1.3 * warm
