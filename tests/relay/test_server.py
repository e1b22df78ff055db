"""The relay as a client meets it: publishing, reading, the export, what it says of itself, and how it starts and stops."""

import asyncio
import itertools
import json
import os
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pytest
import structlog
from websockets.exceptions import ConnectionClosed

from holdfast.export.exchange import Page
from holdfast.export.exporter import Export, Exporter
from holdfast.protocol import keys
from holdfast.protocol.event import encode
from holdfast.relay import documents
from holdfast.relay.database import EXPORT_READER, prepare
from holdfast.relay.relay import Relay
from holdfast.relay.server import Application
from holdfast.relay.settings import Limits, Settings
from holdfast.store.sqlite import MEMORY, SqliteEngine
from holdfast.wire.response import Response
from holdfast.wire.state import Limits as WireLimits
from tests.people import Person, raw, secret_of
from tests.relay.queue_client import eventually
from tests.relay.running import ANSWER_S, Answered, RunningRelay, command, running
from tests.relay.scene import IDENTITY

MESH = "/v1/meshes/01MESH"


@pytest.fixture(scope="module")
def friends(shared_relay: RunningRelay) -> RunningRelay:
    """A relay with a mesh of two."""
    shared_relay.found_mesh("alice", "bob")
    return shared_relay


def message(relay: RunningRelay, **more: Any) -> Any:
    return relay.person("alice").message(relay.person("bob"), **more)


def _rows(page: Answered) -> Any:
    with pa.ipc.open_stream(page.body) as reader:
        return reader.read_all()


# Publishing


def test_an_event_is_accepted_once_and_recognised_afterwards(friends: RunningRelay) -> None:
    event = message(friends)
    first, again = friends.publish(event), friends.publish(event)
    assert (first.status, again.status) == (201, 200)
    accepted = msgspec.convert(first.document, documents.Accepted)
    repeated = msgspec.convert(again.document, documents.Accepted)
    assert (accepted.duplicate, repeated.duplicate) == (False, True)
    assert (accepted.broker_message_id, accepted.history_id) == (repeated.broker_message_id, repeated.history_id)
    assert first.headers["content-type"] == "application/json"


def test_another_event_under_the_same_id_is_a_conflict(friends: RunningRelay) -> None:
    first, other = message(friends, client_message_id="mine"), message(friends, body=b"?", client_message_id="mine")
    assert str(friends.publish(first)) == "201"
    refused = friends.publish(other)
    assert str(refused) == "409 idempotency_key_reused"
    assert refused.document["broker_fingerprint_prefix"] == first.id[:16]


def test_an_event_for_another_log_is_not_taken_and_its_id_stays_free(friends: RunningRelay) -> None:
    event = raw(message(friends))
    refused = friends.ask("POST", "/v1/messages", event, {"Holdfast-Log": "00" * 16})
    taken = friends.ask("POST", "/v1/messages", event)
    known = friends.ask("POST", "/v1/messages", event, {"Holdfast-Log": taken.document["log_id"]})
    assert [str(one) for one in (refused, taken, known)] == ["409 other_log", "201", "200"]


def test_an_array_is_answered_one_by_one_in_order(friends: RunningRelay) -> None:
    known = message(friends)
    friends.publish(known)
    events = [raw(message(friends)), b"{}", raw(known), raw(message(friends))]
    answered = friends.ask("POST", "/v1/messages", b" [" + b" , ".join(events) + b"]")
    assert answered.status == 200
    answers = msgspec.convert(answered.document, documents.Answers).answers
    assert [(answer["status"], answer.get("code")) for answer in answers] == [
        (201, None),
        (400, "malformed"),
        (200, None),
        (201, None),
    ]
    assert answers[0]["history_id"] + 1 == answers[3]["history_id"]


def test_a_hundred_events_fit_into_a_request(friends: RunningRelay) -> None:
    body = b"[" + b",".join(raw(message(friends, body=b"x" * 39_000)) for _ in range(100)) + b"]"
    assert len(body) > 5_000_000
    answers = friends.ask("POST", "/v1/messages", body).document["answers"]
    assert [answer["status"] for answer in answers] == [201] * 100


def test_a_pipelined_websocket_gets_an_answer_to_everything_in_order(friends: RunningRelay) -> None:
    events = [message(friends) for _ in range(300)]
    said: list[Any] = []
    with friends.websocket() as client:
        hearing = threading.Thread(target=lambda: said.extend(json.loads(client.recv(ANSWER_S)) for _ in range(301)))
        hearing.start()
        for event in events[:150]:
            client.send(f'["EVENT",{raw(event).decode()}]')
        client.send("what?")
        for event in events[150:]:
            client.send(f'["EVENT",{raw(event).decode()}]')
        hearing.join(ANSWER_S)
    assert [frame[0] for frame in said] == ["OK"] * 150 + ["NOTICE"] + ["OK"] * 150
    answers = [frame for frame in said if frame[0] == "OK"]
    assert [(frame[1], frame[2]) for frame in answers] == [(event.id, True) for event in events]
    positions = [json.loads(frame[3])["history_id"] for frame in answers]
    assert positions == sorted(positions)


def test_http_and_websocket_know_each_others_events(friends: RunningRelay) -> None:
    event = message(friends)
    broker_message_id = friends.publish(event).document["broker_message_id"]
    with friends.websocket() as client:
        client.send(f'["EVENT",{raw(event).decode()}]')
        verb, event_id, accepted, text = json.loads(client.recv(ANSWER_S))
    assert (verb, event_id, accepted) == ("OK", event.id, True)
    assert text.startswith("duplicate: ")
    assert json.loads(text.removeprefix("duplicate: "))["broker_message_id"] == broker_message_id


# Who may do and know what


@pytest.mark.parametrize(
    "header",
    ["forwarded", "x-forwarded-for", "x-forwarded-proto", "X-Forwarded-Host", "via", "x-real-ip", "origin"],
)
def test_a_mesh_is_founded_by_anybody_near_and_by_nobody_behind_a_proxy_or_a_page(
    friends: RunningRelay, header: str
) -> None:
    founder = Person(f"founder-{header}", int(time.time()), f"01{header.upper()}")
    assert str(friends.publish(founder.found_mesh(), **{header: "for=10.1.1.1"})) == "403 not_permitted"
    with friends.websocket(additional_headers={header: "for=10.1.1.1"}) as client:
        client.send(f'["EVENT",{raw(founder.found_mesh()).decode()}]')
        assert json.loads(client.recv(ANSWER_S))[3].startswith("restricted: not_permitted")
    assert str(friends.publish(founder.found_mesh())) == "201"


def test_behind_a_public_address_nobody_is_near_but_the_operator_may(tmp_path: Path) -> None:
    with running(tmp_path / "relay", HOLDFAST_RELAY_PUBLIC_URL="https://relay.example/base") as relay:
        assert str(relay.publish(relay.person("alice").found_mesh())) == "403 not_permitted"
        assert str(relay.publish(relay.person("alice").found_mesh(), host="relay.example")) == "403 not_permitted"
        operator = Operator(relay.operator())
        assert str(relay.publish(operator.found_mesh())) == "201"
        for url in (relay.url + MESH, "https://relay.example/base" + MESH):
            assert relay.signed(operator.secret, "GET", MESH, tags={"u": url}).status == 200
        assert (
            str(relay.signed(operator.secret, "GET", MESH, tags={"u": "https://evil.example" + MESH}))
            == "401 auth_failed"
        )


class Operator(Person):
    """Whoever has the operator's key."""

    def __init__(self, secret: bytes) -> None:
        super().__init__("operator", int(time.time()))
        self._secret = secret

    @property
    def secret(self) -> bytes:
        return self._secret


def test_a_mesh_is_shown_to_its_members_and_to_the_operator(friends: RunningRelay) -> None:
    seen = friends.signed(friends.person("bob").secret, "GET", MESH)
    mesh = msgspec.convert(seen.document, documents.Mesh)
    assert [(member.name, member.role) for member in mesh.members] == [("alice", "admin"), ("bob", "member")]
    assert friends.signed(friends.operator(), "GET", MESH).document == seen.document
    refused = friends.ask("GET", MESH)
    assert (str(refused), refused.headers["www-authenticate"]) == ("401 auth_required", "Nostr")


def test_a_signed_request_counts_once(friends: RunningRelay) -> None:
    header = {"authorization": friends.authorization(friends.person("bob").secret, "GET", MESH)}
    assert friends.ask("GET", MESH, headers=header).status == 200
    assert str(friends.ask("GET", MESH, headers=header)) == "401 auth_failed"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (MESH, "403 not_a_member"),
        (f"{MESH}/grants?topic=t", "403 not_a_member"),
        ("/v1/consumers/c", "403 not_permitted"),
    ],
)
def test_a_stranger_is_refused_as_such_each_time_and_nothing_of_it_is_remembered(
    friends: RunningRelay, path: str, code: str
) -> None:
    header = {"authorization": friends.authorization(secret_of("a stranger"), "GET", path)}
    assert [str(friends.ask("GET", path, headers=header)) for _ in range(2)] == [code, code]


def test_an_operators_signature_for_a_consumer_counts_once(friends: RunningRelay) -> None:
    header = {"authorization": friends.authorization(friends.operator(), "GET", "/v1/consumers/nobody")}
    found = [str(friends.ask("GET", "/v1/consumers/nobody", headers=header)) for _ in range(2)]
    assert found == ["404 consumer_unknown", "401 auth_failed"]


def test_a_websocket_keeps_the_order_of_a_destination_across_its_messages(friends: RunningRelay) -> None:
    alice, bob = Person("alice", now_s=int(time.time())), friends.person("bob")
    alice.sequences = itertools.count(500)
    alice.now_s += 3_600
    early = alice.message(bob, client_message_id="of-tomorrow")
    alice.now_s -= 3_600
    mended, next_one = alice.message(bob, client_message_id="of-tomorrow"), alice.message(bob)
    with friends.websocket() as socket:
        found = []
        for event in (early, next_one, mended, next_one):
            socket.send(json.dumps(["EVENT", msgspec.to_builtins(event)]))
            found.append(json.loads(socket.recv(ANSWER_S))[2:])
    assert [text.split(": ")[1] for is_yes, text in found[:2]] == ["clock_ahead", "held_back"]
    assert [is_yes for is_yes, _ in found] == [False, False, True, True]


def test_grants_are_ones_own(tmp_path: Path) -> None:
    with running(tmp_path / "relay") as relay:
        relay.found_mesh("alice", "bob")
        alice, bob = relay.person("alice"), relay.person("bob")
        for event in (
            alice.create_topic("a/b"),
            alice.subscribe("a/b"),
            bob.subscribe("a/b"),
            alice.grant("a/b", 1, [alice, bob]),
            alice.advance("a/b", 0),
        ):
            assert str(relay.publish(event)) == "201"
        shown = [relay.signed(who.secret, "GET", MESH + "/grants?topic=a%2Fb").document for who in (alice, bob)]
        found = [msgspec.convert(document, documents.Grants) for document in shown]
        assert [[grant.key for grant in grants.grants] for grants in found] == [[alice.key], [bob.key]]
        assert found[1].grants[0].granted_by == alice.key
        topics = msgspec.convert(relay.signed(bob.secret, "GET", MESH).document, documents.Mesh).topics
        assert [(topic.topic, topic.key_epoch, len(topic.subscribers)) for topic in topics] == [("a/b", 1, 2)]


def test_the_export_streams_what_the_token_opens(friends: RunningRelay) -> None:
    friends.publish(message(friends))
    head = friends.head_seq()
    bearer = {"authorization": f"Bearer {friends.token()}"}
    page = friends.ask("GET", "/v1/export/history?after=1", headers=bearer)
    assert (page.status, page.headers["content-type"]) == (200, "application/vnd.apache.arrow.stream")
    assert _rows(page)["seq"].to_pylist() == list(range(2, head + 1))
    assert page.headers["holdfast-as-of-seq"] == str(head)
    information = friends.ask("GET", "/").document
    assert page.headers["holdfast-log-id"] == information["log_id"]
    refused = friends.ask("GET", "/v1/export/history", headers={"authorization": "Bearer hft1_AAAA"})
    assert (str(refused), refused.headers["www-authenticate"]) == ("401 token_invalid", "Bearer")


def test_an_export_that_nobody_reads_stops_and_the_next_one_is_served(tmp_path: Path) -> None:
    limits = "[limits]\nsend_timeout_s = 2.0\nmessages_burst = 100000\nqueue_messages_max = 100000\n"
    with running(tmp_path / "relay", limits) as relay:
        relay.found_mesh("alice", "bob")
        for _ in range(5):
            events = [raw(message(relay, body=b"x" * 39_000)) for _ in range(100)]
            relay.ask("POST", "/v1/messages", b"[" + b",".join(events) + b"]")
        bearer = f"Bearer {relay.token()}"
        request = (
            f"GET /v1/export/message?columns=seq,event HTTP/1.1\r\nhost: localhost\r\nauthorization: {bearer}\r\n\r\n"
        )
        with ExitStack() as deaf:
            for _ in range(8):  # more than the reader serves at once
                peer = deaf.enter_context(socket.create_connection(relay.address))
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                peer.sendall(request.encode())
            page = relay.ask("GET", "/v1/export/message?columns=seq,event", headers={"authorization": bearer})
        assert _rows(page).num_rows == 503
        assert relay.metric("holdfast_bugs_total") == 0


def test_a_consumer_is_registered_by_the_operator_and_moved_by_its_token(friends: RunningRelay) -> None:
    path = "/v1/consumers/lake"
    log_id = friends.ask("GET", "/").document["log_id"]

    def checkpoint(seq: int) -> bytes:
        return json.dumps({"log_id": log_id, "seq": seq}).encode()

    registered = friends.signed(friends.operator(), "PUT", path, checkpoint(1))
    assert msgspec.convert(registered.document, documents.Consumer).seq == 1
    bearer = {"authorization": f"Bearer {friends.token('--consumer', 'lake')}"}
    assert friends.ask("PUT", path, checkpoint(3), bearer).document["seq"] == 3
    assert str(friends.ask("PUT", path, checkpoint(2), bearer)) == "409 checkpoint_backwards"
    assert str(friends.ask("PUT", path, checkpoint(10**9), bearer)) == "409 cursor-ahead"
    assert friends.ask("GET", path, headers=bearer).document["seq"] == 3
    assert friends.signed(friends.operator(), "GET", path).document["seq"] == 3


# What it says of itself


def test_its_information_has_the_limits_that_it_keeps(tmp_path: Path) -> None:
    settings = (
        'name = "ours"\n[limits]\nframe_bytes_max = 70000\nqueue_messages_max = 9\n[retention]\nqueue_ttl_days = 2\n'
    )
    with running(tmp_path / "relay", settings) as relay:
        answered = relay.ask("GET", "/", headers={"accept": "application/nostr+json"})
        assert answered.headers["content-type"] == "application/nostr+json"
        assert answered.headers["access-control-allow-origin"] == "*"
        found = msgspec.convert(answered.document, documents.Information)
        assert found.pubkey == keys.public_key(keys.read_nsec((relay.data / "relay.key").read_text().strip()))
        assert (found.name, found.limitation.max_message_length, found.limitation.max_event_length) == (
            "ours",
            70_000,
            65_536,
        )
        assert found.features == documents.Features(
            documents.Dedupe("retention_scoped", 365), documents.Queue(2, 9, 200, "prefer_newest")
        )
        with relay.websocket() as client:
            client.send(" " * 70_000)
            assert json.loads(client.recv(ANSWER_S))[0] == "NOTICE"
            client.send(" " * 70_001)
            with pytest.raises(ConnectionClosed) as closed:
                client.recv(ANSWER_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


def test_openapi_describes_every_route_and_refers_to_nothing_that_is_not_there(friends: RunningRelay) -> None:
    description = friends.ask("GET", "/openapi.json").document
    assert description["openapi"] == "3.1.0"
    text = json.dumps(description)
    for reference in {part.split('"')[0] for part in text.split('"$ref": "#/components/schemas/')[1:]}:
        assert reference in description["components"]["schemas"]
    for path, operations in description["paths"].items():
        for method in operations:
            answered = friends.ask(method.upper(), path.replace("{", "").replace("}", ""))
            assert answered.status not in (404, 405, 500), f"{method} {path}"
    assert description["paths"]["/v1/messages"]["post"]["responses"]["201"]
    assert description["paths"]["/v1/export/{table}"]["get"]["security"] == [{"token": []}]


def test_a_wrong_method_is_told_the_right_ones(friends: RunningRelay) -> None:
    refused = friends.ask("POST", "/v1/consumers/x")
    assert (str(refused), refused.headers["allow"]) == ("405 method_not_allowed", "GET, PUT")


def test_head_is_get_without_the_body(friends: RunningRelay) -> None:
    answered = friends.ask("HEAD", "/livez")
    assert (answered.status, answered.body, answered.headers["content-length"]) == (200, b"", "11")


def test_it_counts_what_it_does(friends: RunningRelay) -> None:
    before = friends.metric('holdfast_answers_total{code="duplicate"}')
    event = message(friends)
    for _ in range(3):
        friends.publish(event)
    friends.ask("GET", "/nothing/here")
    assert friends.metric('holdfast_answers_total{code="duplicate"}') == before + 2
    assert friends.metric('holdfast_requests_total{route="none",status="404"}') >= 1
    assert friends.metric("holdfast_meshes") >= 1
    assert friends.metric("holdfast_ready") == 1
    assert 10_000_000 < friends.metric("holdfast_resident_memory_bytes") < 500_000_000
    eventually(lambda: friends.metric("holdfast_connections") == 1)  # who has just left may still be counted


def test_its_log_is_json_and_says_where_the_operator_key_lies(friends: RunningRelay) -> None:
    made, serving, *_ = friends.log()
    assert (made["path"], made["level"]) == (str(friends.data / "operator.key"), "warning")
    assert (serving["event"], serving["url"]) == ("serving", friends.url)
    assert made["pubkey"] == keys.public_key(friends.operator())


# A mistake of ours


def test_a_mistake_of_ours_is_500_with_a_number_that_the_log_has() -> None:
    scope = {"type": "http", "method": "GET", "path": "/livez", "headers": [(b"host", b"localhost")]}
    with structlog.testing.capture_logs() as log:
        said = asyncio.run(_asked(scope))
    assert said[0]["status"] == 500
    document = json.loads(said[1]["body"])
    assert (document["code"], document["number"]) == ("internal_server_error", "2a" * 8)
    assert b"KeyError" not in said[1]["body"]
    assert [(line["event"], line["number"], type(line["exc_info"])) for line in log] == [("bug", "2a" * 8, KeyError)]


async def _asked(scope: dict[str, Any]) -> list[Any]:
    """What the application says to a request from a server that forgot half of it."""
    engine = SqliteEngine(MEMORY)
    prepare(engine, lambda: 1, os.urandom)
    relay = Relay(engine, Settings(), IDENTITY, inline=True)
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    application = Application(relay, Exporter.within(engine, EXPORT_READER), random=lambda count: b"*" * count)
    await application(scope, receive, send)
    await relay.close()
    return said


def test_a_stream_without_end_ends_when_nobody_takes_it() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"more"

    @asynccontextmanager
    async def opened() -> AsyncIterator[Export]:
        yield Export(Page("history", bytes(16), 1, 0, 1, 1, 1, 10**12), endless())

    async def test() -> None:
        said = 0
        gone = asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal said
            said += 1
            if said == 100:
                gone.set()

        await Response(receive, send).give(opened())
        assert said < 110

    asyncio.run(test())


# Starting and stopping


def test_it_makes_a_directory_of_its_own_and_stops_when_told(tmp_path: Path) -> None:
    with running(tmp_path / "relay") as relay:
        assert stat.S_IMODE(relay.data.stat().st_mode) == 0o700
        assert relay.ask("GET", "/readyz").status == relay.ask("GET", "/livez").status == 200
        log_id = relay.ask("GET", "/").document["log_id"]
        assert relay.stop() == 0
        assert [line["event"] for line in relay.log()][-2:] == ["draining", "stopped"]
    with running(tmp_path / "relay") as relay:
        assert relay.ask("GET", "/").document["log_id"] == log_id
        assert [line["event"] for line in relay.log()] == ["serving"]  # no second operator key
        assert relay.stop(signal.SIGINT) == 0


def test_a_second_relay_on_the_same_directory_is_told_who_has_it(friends: RunningRelay) -> None:
    second = subprocess.run(command(friends.data), capture_output=True, text=True, timeout=ANSWER_S)
    assert (second.returncode, second.stdout) == (5, "")
    assert f"{friends.data}: a relay is running on this directory (process {friends.process.pid})" in second.stderr


def test_a_port_that_is_taken_is_named(friends: RunningRelay, tmp_path: Path) -> None:
    port = friends.url.rpartition(":")[2]
    second = subprocess.run(
        command(tmp_path / "other", "--port", port), capture_output=True, text=True, timeout=ANSWER_S
    )
    assert second.returncode == 5
    assert f"127.0.0.1:{port}: another program listens on this port already" in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("[limits]\nconections_max = 1", "Did you mean limits.connections_max?"),
        ('operators = ["me"]', "an operator in the settings is not a public key"),
        ("[limits]\nconnections_max = 1000000", "Lower the setting, or raise that limit"),
    ],
)
def test_settings_that_cannot_be_are_said_in_one_line(tmp_path: Path, settings: str, said: str) -> None:
    (tmp_path / "relay").mkdir(mode=0o700)
    (tmp_path / "relay" / "relay.toml").write_text(settings)  # found without being named
    limited = ["bash", "-c", 'ulimit -n 4096; exec "$@"', "-", *command(tmp_path / "relay")]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=ANSWER_S)
    assert done.returncode in (1, 2)
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_stopping_answers_what_is_under_way_and_closes_websockets_with_1012(tmp_path: Path) -> None:
    with running(tmp_path / "relay", "[limits]\nmessages_burst = 1000000\nqueue_messages_max = 1000000\n") as relay:
        relay.found_mesh("alice", "bob")
        events = [message(relay) for _ in range(2000)]
        answered = 0
        with relay.websocket() as client, pytest.raises(ConnectionClosed) as closed:

            def pour() -> None:
                try:
                    for event in events:
                        client.send(f'["EVENT",{raw(event).decode()}]')
                except ConnectionClosed:
                    pass

            pouring = threading.Thread(target=pour)
            pouring.start()
            while True:
                frame = json.loads(client.recv(ANSWER_S))
                assert frame[2], frame
                answered += 1
                if answered == 100:
                    relay.process.send_signal(signal.SIGTERM)
        pouring.join()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1012, "shutting_down")
        assert relay.process.wait(ANSWER_S) == 0
    with running(tmp_path / "relay") as relay:
        assert relay.head_seq() == 3 + answered  # nothing was taken that was not told


def test_it_sweeps_from_time_to_time(tmp_path: Path) -> None:
    with running(tmp_path / "relay", HOLDFAST_RELAY_RETENTION__SWEEP_INTERVAL_S="1") as relay:
        over = time.monotonic() + ANSWER_S
        while relay.metric("holdfast_sweeps_total") < 2 and time.monotonic() < over:
            time.sleep(0.1)
        assert relay.metric("holdfast_sweeps_total") >= 2
        assert relay.metric("holdfast_faults_total") == 0


def test_nothing_encoded_differs_from_what_was_signed(friends: RunningRelay) -> None:
    """The relay keeps the bytes of an event: those that came are those that the export gives."""
    event = message(friends)
    seq = friends.publish(event).document["history_id"]
    bearer = {"authorization": f"Bearer {friends.token()}"}
    page = friends.ask("GET", f"/v1/export/message?after={seq - 1}&until={seq}&columns=event", headers=bearer)
    assert _rows(page)["event"].to_pylist() == [encode(event)]


def test_limits_of_the_wire_are_those_of_the_settings() -> None:
    settings = Limits()
    assert {name: getattr(settings, name) for name in WireLimits.__struct_fields__} == msgspec.structs.asdict(
        WireLimits()
    )
