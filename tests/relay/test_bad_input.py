"""Everything that should not be sent to a relay, and what it says to it: by name, without growing, without a trace left."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from holdfast.protocol.action import CreateTopic
from holdfast.protocol.event import Event, encode, sign_event
from holdfast.protocol.fingerprint import DestinationKind
from tests.people import Person
from tests.relay.running import ANSWER_S, Answered, RunningRelay, running

SETTINGS = """
[limits]
connections_max = 8
request_bytes_max = 1_000_000
bodies_bytes_max = 4_000_000
messages_burst = 200
messages_per_s = 0.1
"""
HASTY = """
request_timeout_s = 1.0
idle_timeout_s = 2.0
send_timeout_s = 1.0
"""
MEMORY_GROWTH_MAX = 48_000_000
DAY_S = 86_400
MASK = b"\x00\x00\x00\x00"

Ask = Callable[[RunningRelay], str]


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
    with _founded(tmp_path_factory.mktemp("bad") / "relay", SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
    """For those who are too slow on purpose. The others may be slow because the machine is: they ask the patient one."""
    with _founded(tmp_path_factory.mktemp("hasty") / "relay", SETTINGS + HASTY) as started:
        yield started


@contextmanager
def _founded(data: Path, settings: str) -> Iterator[RunningRelay]:
    with running(data, settings) as started:
        started.found_mesh("alice", "bob")
        alice = started.person("alice")
        for event in (
            alice.create_topic("new"),
            alice.create_topic("news"),
            alice.grant("news", 1, [alice]),
            alice.advance("news", 0),
        ):
            assert str(started.publish(event)) == "201"
        assert str(post(encode(good(started)))(started)) == "201"
        yield started


# What is sent.


def good(relay: RunningRelay) -> Event:
    return relay.person("alice").message(relay.person("bob"))


def post(body: bytes | Callable[[RunningRelay], bytes], **headers: str) -> Ask:
    """A body to publish."""

    def ask(relay: RunningRelay) -> str:
        sent = body if isinstance(body, bytes) else body(relay)
        return _described(relay.ask("POST", "/v1/messages", sent, {k.replace("_", "-"): v for k, v in headers.items()}))

    return ask


def call(method: str, path: str, body: bytes = b"", **headers: str) -> Ask:
    return lambda relay: _described(relay.ask(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()}))


def _described(answered: Answered) -> str:
    """Status and code; of an array all the codes."""
    if answered.status == 200 and b'"answers"' in answered.body[:12]:
        return "200 " + ",".join(dict.fromkeys(item.get("code", "-") for item in answered.document["answers"]))
    return str(answered)


def changed(**fields: Any) -> Callable[[RunningRelay], bytes]:
    """A good event with some fields changed after it was signed."""
    return lambda relay: msgspec.json.encode(msgspec.to_builtins(good(relay)) | fields)


def without(name: str) -> Callable[[RunningRelay], bytes]:
    def body(relay: RunningRelay) -> bytes:
        fields = msgspec.to_builtins(good(relay))
        del fields[name]
        return msgspec.json.encode(fields)

    return body


def signed(**given: Any) -> Callable[[RunningRelay], bytes]:
    """A properly signed event of alice's that says something else than it may."""

    def body(relay: RunningRelay) -> bytes:
        alice, event = relay.person("alice"), good(relay)
        tags = given.get("tags", lambda tags: tags)(list(event.tags))
        created_at = int(time.time()) + given.get("seconds", 0)
        content = given.get("content", event.content)
        return encode(sign_event(alice.secret, created_at, given.get("kind", event.kind), tags, content, bytes(32)))

    return body


def said_by(make: Callable[[RunningRelay], Event]) -> Callable[[RunningRelay], bytes]:
    return lambda relay: encode(make(relay))


def stranger(relay: RunningRelay) -> Person:
    return relay.person("mallory")


def to_unknown_member(relay: RunningRelay) -> Event:
    return relay.person("alice").message(relay.person("nobody"))


def to_queue(relay: RunningRelay) -> bytes:
    tags = [["destination_kind", DestinationKind.QUEUE], ["destination_ref", "q-1"], ["key_epoch", "1"]]
    kept = ("mesh", "client_message_id", "epoch", "sequence")
    return signed(tags=lambda old: [*(t for t in old if t[0] in kept), *tags, *(t for t in old if t[0] == "priority")])(
        relay
    )


def in_mesh(mesh: str) -> Callable[[RunningRelay], bytes]:
    return signed(tags=lambda tags: [["mesh", mesh] if tag[0] == "mesh" else tag for tag in tags])


def flood(relay: RunningRelay) -> str:
    """Far more than one sender may, to a destination that does not exist."""
    flooder = relay.person("bob")
    seen: dict[str, None] = {}
    for _ in range(4):
        events = [flooder.message(relay.person("nobody"), str(n).encode()) for n in range(100)]
        answered = relay.ask("POST", "/v1/messages", b"[" + b",".join(map(encode, events)) + b"]")
        for item in answered.document["answers"]:
            seen[item["code"]] = None
            assert item["code"] != "rate_limited" or item["retry_after_s"] >= 1
    alone = relay.publish(flooder.message(relay.person("nobody"), b"alone"))
    assert int(alone.headers["retry-after"]) >= 1
    return f"{' '.join(seen)}; {alone}"


# What is sent by those who do not even speak HTTP well.


def connected(relay: RunningRelay) -> socket.socket:
    return socket.create_connection(relay.address, timeout=ANSWER_S)


def raw(*pieces: bytes, pause_s: float = 0.0) -> Ask:
    """Bytes, and what comes back before the connection ends."""

    def ask(relay: RunningRelay) -> str:
        with connected(relay) as peer:
            with suppress(ConnectionError):
                for piece in pieces:
                    peer.sendall(piece)
                    time.sleep(pause_s)
            return _responses(_all_of(peer))

    return ask


def _all_of(peer: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionError):
        while part := peer.recv(65_536):
            received += part
    return received


def _responses(received: bytes) -> str:
    """Each response by its status and code, and that the connection ended."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        headers = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        size = int(headers[b"content-length"])
        headers_of_text = {name.decode(): value.decode() for name, value in headers.items()}
        found.append(str(Answered(int(head.split()[1]), headers_of_text, rest[:size])))
        received = rest[size:]
    return ", ".join([*found, "ended"])


def head(*lines: str, method: str = "POST", path: str = "/v1/messages") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


def many_connections(relay: RunningRelay) -> str:
    peers = [connected(relay) for _ in range(8)]
    try:  # they were there first, so they are taken first
        return raw(head(method="GET", path="/livez"))(relay)
    finally:
        for peer in peers:
            peer.close()
        _until_calm(relay)


def sent_for_ever(*pieces: bytes) -> Ask:
    """The last piece again and again, and nothing is read."""

    def ask(relay: RunningRelay) -> str:
        with connected(relay) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            over = time.monotonic() + ANSWER_S
            with suppress(ConnectionError):
                for piece in pieces:
                    peer.sendall(piece)
                while time.monotonic() < over:
                    peer.sendall(pieces[-1])
                return "it takes everything"
            return "cut off"

    return ask


def slow_body(relay: RunningRelay) -> str:
    with connected(relay) as peer:
        peer.sendall(head("content-length: 1000"))
        with suppress(ConnectionError):
            for _ in range(30):
                peer.sendall(b" ")
                time.sleep(0.1)
        return _responses(_all_of(peer))


def large_bodies_that_wait(relay: RunningRelay) -> str:
    """More bodies than there is memory for, each of them allowed, none of them complete.

    They have to be there at one time. On a machine that is too busy the first are given up before the last have come.
    """
    over = time.monotonic() + ANSWER_S
    while "503" not in (found := _large_bodies(relay)) and time.monotonic() < over:
        _until_calm(relay)
    return found


def _large_bodies(relay: RunningRelay) -> str:
    peers = [connected(relay) for _ in range(6)]
    try:
        outcomes = set()
        for peer in peers:
            with suppress(ConnectionError):
                peer.sendall(head("content-length: 1000000") + b" " * 999_999)
        for peer in peers:
            outcomes.add(_responses(_all_of(peer)))
        return "; ".join(sorted(outcomes))
    finally:
        for peer in peers:
            peer.close()


def _until_calm(relay: RunningRelay) -> None:
    """Until those who left are gone for the relay, too."""
    over = time.monotonic() + ANSWER_S
    while time.monotonic() < over:
        with suppress(ConnectionError, AssertionError):
            if relay.ask("GET", "/livez").status == 200 and relay.metric("holdfast_connections") <= 1:
                return
        time.sleep(0.05)
    raise AssertionError("connections stay")


# What is sent over a WebSocket.


def frames(*sent: str | bytes) -> Ask:
    """Messages, and what comes back: as many answers, or the close."""

    def ask(relay: RunningRelay) -> str:
        with relay.websocket() as client:
            with suppress(ConnectionClosed):
                for message in sent:
                    client.send(message)
            return _next(client)

    return ask


def _next(client: ClientConnection) -> str:
    try:
        verb, *rest = json.loads(client.recv(ANSWER_S))
    except ConnectionClosed as closed:
        return f"close {closed.rcvd.code if closed.rcvd else 1006} {closed.rcvd.reason if closed.rcvd else ''}".strip()
    return f"{verb} {': '.join(rest[-1].split(': ')[:2])}"


def event_frame(body: Callable[[RunningRelay], bytes]) -> Ask:
    return lambda relay: frames(f'["EVENT",{body(relay).decode()}]')(relay)


def wire_bytes(*pieces: bytes) -> Ask:
    """Bytes that are no proper frames."""

    def ask(relay: RunningRelay) -> str:
        with relay.websocket() as client:
            for piece in pieces:
                client.socket.sendall(piece)
            return _next(client)

    return ask


def handshake(path: str = "/", **headers: str) -> Ask:
    def ask(relay: RunningRelay) -> str:
        try:
            with relay.websocket(path, additional_headers=headers):
                pass
        except InvalidStatus as refused:
            response = refused.response
            lowered = {name.lower(): value for name, value in response.headers.raw_items()}
            return str(Answered(response.status_code, lowered, bytes(response.body or b"")))
        return "opened"

    return ask


HANDSHAKE = head(
    "connection: upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    method="GET",
    path="/",
)


def half_open(relay: RunningRelay) -> str:
    """Upgrades, and is never heard of again, not even with a pong."""
    with connected(relay) as peer:
        peer.sendall(HANDSHAKE)
        received = _all_of(peer)
        return f"{received.split()[1].decode()}, ended"


def as_(who: str, method: str, path: str, body: bytes = b"", **given: Any) -> Ask:
    """Signed by somebody, for another request than this one where `given` says so."""

    def ask(relay: RunningRelay) -> str:
        secret = relay.operator() if who == "operator" else relay.person(who).secret
        return str(relay.signed(secret, method, path, body, **given))

    return ask


def with_token(method: str, path: str, body: bytes = b"", change: Callable[[str], str] = str) -> Ask:
    return lambda relay: str(
        relay.ask(method, path, body, {"authorization": "Bearer " + change(relay.token("--consumer", "c"))})
    )


MESH = "/v1/meshes/01MESH"
EXPORT = "/v1/export/history"
HALF_KEPT = b'{"log_id": "00", "seq": 1}'
OTHER_LOG = json.dumps({"log_id": "00" * 16, "seq": 0}).encode()

BAD_INPUT: dict[str, tuple[str, Ask]] = {
    # bodies that are no events
    "no body": ("400 malformed", post(b"")),
    "no JSON": ("400 malformed", post(b"hello")),
    "half of JSON": ("400 malformed", post(lambda relay: encode(good(relay))[:-10])),
    "JSON and more": ("400 malformed", post(lambda relay: encode(good(relay)) + b"{}")),
    "a number": ("400 malformed", post(b"7")),
    "null": ("400 malformed", post(b"null")),
    "an empty object": ("400 malformed", post(b"{}")),
    "an empty array": ("400 malformed", post(b"[]")),
    "an array without end": ("400 malformed", post(b"[" + b"{}," * 50)),
    "an array of other things": ("200 malformed", post(b'[1, "two", null, [], {}]')),
    "too many events": ("413 too_large", post(b"[" + b"{}," * 100 + b"{}]")),
    "a hundred thousand things": ("413 too_large", post(b"[" + b"0," * 450_000 + b"0]")),
    "deep arrays": ("400 malformed", post(b"[" * 900_000)),
    "deep arrays that end": ("400 malformed", post(b"[" * 400_000 + b"]" * 400_000)),
    "deep objects": ("413 too_large", post(b'{"a":' * 150_000)),
    "deep objects in an event's size": ("400 malformed", post(b'{"a":' * 10_000)),
    "deep tags": ("400 malformed", post(changed(tags=json.loads("[" * 500 + "]" * 500)))),
    "deep events in an array": ("400 malformed", post(b'[{"a":' * 100_000)),
    "a body over the limit": ("413 too_large", post(b" " * 1_000_001)),
    "a body far over the limit": ("413 too_large", post(b" " * 30_000_000)),
    "an event over the limit": ("413 too_large", post(lambda relay: encode(good(relay)) + b" " * 65_536)),
    "an event far over the limit": ("413 too_large", post(changed(content="x" * 900_000))),
    "a long number": ("400 malformed", post(changed(kind=10**4000))),
    # events that are none
    **{f"without {name}": ("400 malformed", post(without(name))) for name in Event.__struct_fields__},
    "a field too many": ("400 malformed", post(changed(extra=1))),
    "a field twice": ("400 malformed", post(lambda relay: encode(good(relay))[:-1] + b',"kind":4201}')),
    "id a number": ("400 malformed", post(changed(id=1))),
    "id in capitals": ("400 malformed", post(changed(id="AB" * 32))),
    "id too short": ("400 malformed", post(changed(id="ab"))),
    "pubkey null": ("400 malformed", post(changed(pubkey=None))),
    "pubkey no point": ("400 bad_event_id", post(changed(pubkey="ff" * 32))),
    "created_at a text": ("400 malformed", post(changed(created_at="now"))),
    "created_at negative": ("400 malformed", post(changed(created_at=-1))),
    "created_at a fraction": ("400 malformed", post(changed(created_at=1.5))),
    "kind too large": ("400 malformed", post(changed(kind=65_536))),
    "tags an object": ("400 malformed", post(changed(tags={}))),
    "tags of numbers": ("400 malformed", post(changed(tags=[[1]]))),
    "an empty tag": ("400 malformed", post(changed(tags=[[]]))),
    "too many tags": ("400 malformed", post(changed(tags=[["t"]] * 1025))),
    "content a list": ("400 malformed", post(changed(content=[]))),
    "a lone surrogate": ("400 malformed", post(lambda relay: b'{"content":"\\ud800"}')),
    "no UTF-8": ("400 malformed", post(lambda relay: encode(good(relay)).replace(b"4201", b'"\xff"'))),
    "sig too long": ("400 malformed", post(changed(sig="ab" * 65))),
    # events that are not what their author signed
    "wrong id": ("400 bad_event_id", post(changed(id="ab" * 32))),
    "content changed": ("400 bad_event_id", post(changed(content="A" * 132))),
    "wrong signature": ("400 bad_signature", post(changed(sig="ab" * 64))),
    "somebody else's signature": ("400 bad_signature", post(lambda relay: changed(sig=good(relay).sig)(relay))),
    # events that are authentic and not right
    "another kind": ("400 kind_unsupported", post(signed(kind=1))),
    "a clock ahead": ("400 clock_ahead", post(signed(seconds=1000))),
    "too old": ("400 event_too_old", post(signed(seconds=-366 * DAY_S))),
    "a tag missing": ("400 malformed", post(signed(tags=lambda tags: tags[:-1]))),
    "an unknown tag": ("400 malformed", post(signed(tags=lambda tags: [*tags, ["x", "y"]]))),
    "tags in another order": ("400 malformed", post(signed(tags=lambda tags: tags[::-1]))),
    "not sealed": ("400 malformed", post(signed(content="hello"))),
    "no member": ("403 not_a_member", post(said_by(lambda relay: stranger(relay).message(relay.person("bob"))))),
    "an unknown mesh": ("404 mesh_unknown", post(in_mesh("01OTHER"))),
    "a mesh of the relay's": ("404 mesh_unknown", post(in_mesh("relay"))),
    "an unknown member": ("404 destination_unknown", post(said_by(to_unknown_member))),
    "an unknown topic": ("404 destination_unknown", post(said_by(lambda relay: relay.person("alice").post("old")))),
    "a topic that has no key": (
        "412 waiting_for_key",
        post(said_by(lambda relay: relay.person("alice").post("new"))),
    ),
    "a topic without its key": ("403 may_not_post", post(said_by(lambda relay: relay.person("bob").post("news")))),
    "a queue": ("400 destination_kind_unsupported", post(to_queue)),
    "administration by no member": (
        "403 not_permitted",
        post(said_by(lambda relay: stranger(relay).administer(CreateTopic(topic="mine")))),
    ),
    "a mesh from behind a proxy": (
        "403 not_permitted",
        post(said_by(lambda relay: Person("eve", int(time.time()), "01EVE").found_mesh()), x_forwarded_for="10.0.0.1"),
    ),
    "a mesh from a page in a browser": (
        "403 not_permitted",
        post(
            said_by(lambda relay: Person("eve", int(time.time()), "01EVE").found_mesh()), origin="http://evil.example"
        ),
    ),
    "a flood of events": ("destination_unknown rate_limited held_back; 429 rate_limited", flood),
    # requests that are none, or to nowhere
    "an unknown path": ("404 not_found", call("GET", "/v2/messages")),
    "a path with dots": ("404 not_found", call("GET", "/v1/../v1/messages/")),
    "an unknown method": ("405 method_not_allowed", call("DELETE", "/v1/messages")),
    "a method that is none": ("400 bad_request, ended", raw(b"BREW /v1/messages HTTP/1.1\r\n\r\n")),
    "another host": ("403 host_not_allowed", call("GET", "/", host="evil.example")),
    "another host to publish": ("403 host_not_allowed", post(b"{}", host="evil.example:80")),
    "no host": ("403 host_not_allowed, ended", raw(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")),
    "a token in the query": ("400 token_in_query", call("GET", EXPORT + "?token=x")),
    "a token in the query of nothing": ("400 token_in_query", call("GET", "/nothing?a=b&%54oken=x")),
    "a token in the query to publish": ("400 token_in_query", call("POST", "/v1/messages?token=x", b"{}")),
    "a query that is none": ("400 malformed", call("GET", "/livez?x")),
    "a parameter twice": ("400 malformed", call("GET", EXPORT + "?after=1&after=2")),
    "a length that is none": ("400 bad_request, ended", raw(head("content-length: many"))),
    "two lengths": ("400 bad_request, ended", raw(head("content-length: 1", "content-length: 2"))),
    "length and chunks": ("400 bad_request, ended", raw(head("content-length: 1", "transfer-encoding: chunked"))),
    "a length too short": (
        "400 malformed, ended",
        raw(head("content-length: 2") + b"{}{}"),
    ),
    "a length far too long": ("413 too_large, ended", raw(head("content-length: 99999999999"))),
    "chunks that are none": ("400 bad_request, ended", raw(head("transfer-encoding: chunked") + b"zz\r\n")),
    "chunks without end": (
        "413 too_large, ended",
        raw(head("transfer-encoding: chunked"), *[b"186a0\r\n" + b" " * 100_000 + b"\r\n"] * 100),
    ),
    "headers without end": (
        "431 request_header_fields_too_large, ended",
        raw(head()[:-2], *[b"x: y\r\n" * 1000] * 100),
    ),
    "a path without end": ("431 request_header_fields_too_large, ended", raw(b"GET /", *[b"x" * 10_000] * 100)),
    "TLS": ("400 bad_request, ended", raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")),
    "noise": ("400 bad_request, ended", raw(bytes(range(256)) * 100)),
    "too many connections": ("503 too_many_connections, ended", many_connections),
    # those who may not know
    "a mesh, by nobody": ("401 auth_required", call("GET", MESH)),
    "a mesh, with a token": ("401 auth_required", with_token("GET", MESH)),
    "a mesh, by no member": ("403 not_a_member", as_("mallory", "GET", MESH)),
    "an unknown mesh, by no member": ("403 not_a_member", as_("mallory", "GET", "/v1/meshes/01OTHER")),
    "an unknown mesh, by the operator": ("404 mesh_unknown", as_("operator", "GET", "/v1/meshes/01OTHER")),
    "a mesh that cannot be": ("400 malformed", as_("alice", "GET", "/v1/meshes/a%20b")),
    "signed for another path": ("401 auth_failed", as_("alice", "GET", MESH, tags={"u": "http://127.0.0.1:1" + MESH})),
    "signed for another method": ("401 auth_failed", as_("alice", "GET", MESH, tags={"method": "PUT"})),
    "signed too long ago": ("401 auth_failed", as_("alice", "GET", MESH, at=-120)),
    "signed in the future": ("401 auth_failed", as_("alice", "GET", MESH, at=120)),
    "signed as another kind": ("401 auth_failed", as_("alice", "GET", MESH, kind=1)),
    "signed for nothing": ("401 auth_failed", as_("alice", "GET", MESH, tags={"u": ""})),
    "a signature that is none": ("401 auth_failed", call("GET", MESH, authorization="Nostr !!!")),
    "grants of no topic": ("400 malformed", as_("alice", "GET", MESH + "/grants")),
    "grants of an unknown topic": ("404 destination_unknown", as_("alice", "GET", MESH + "/grants?topic=old")),
    "the export, by nobody": ("401 token_invalid", call("GET", EXPORT)),
    "the export, by the operator's key": ("401 token_invalid", as_("operator", "GET", EXPORT)),
    "the export, with half a token": ("401 token_invalid", with_token("GET", EXPORT, change=lambda token: token[:-9])),
    "an unknown table": ("404 table_unknown", with_token("GET", "/v1/export/secrets")),
    "a range that is none": ("400 range_invalid", with_token("GET", EXPORT + "?after=-1")),
    "a range backwards": ("400 range_invalid", with_token("GET", EXPORT + "?after=3&until=1")),
    "an unknown parameter": ("400 range_invalid", with_token("GET", EXPORT + "?from=1")),
    "an unknown column": ("400 column_unknown", with_token("GET", EXPORT + "?columns=secret")),
    "an unknown consumer": ("404 consumer_unknown", as_("operator", "GET", "/v1/consumers/c")),
    "a consumer, by a member": ("403 not_permitted", as_("alice", "GET", "/v1/consumers/c")),
    "another one's consumer": ("403 not_permitted", with_token("GET", "/v1/consumers/d")),
    "a checkpoint that is none": ("400 malformed", with_token("PUT", "/v1/consumers/c", HALF_KEPT)),
    "a checkpoint that is no UTF-8": ("400 malformed", with_token("PUT", "/v1/consumers/c", b'{"log_id":"\xff"}')),
    "a reason that is no UTF-8": (
        "400 malformed",
        as_("operator", "POST", "/v1/messages/m/moderation", b'{"reason":"\xff"}'),
    ),
    "a checkpoint of another log": ("409 other_log", with_token("PUT", "/v1/consumers/c", OTHER_LOG)),
    "a checkpoint whose hash was not signed": (
        "401 auth_failed",
        as_("operator", "PUT", "/v1/consumers/c", OTHER_LOG, tags={"payload": "00" * 32}),
    ),
    # WebSockets
    "a WebSocket elsewhere": ("404 not_found", handshake("/v1/messages")),
    "a WebSocket with a token": ("400 token_in_query", handshake("/?token=x")),
    "a WebSocket of another host": ("403 host_not_allowed", handshake(Host="evil.example")),
    "a binary frame": ("close 1003 binary_frame", frames(b"[]")),
    "a frame over the limit": (
        "close 1009 frame with 131073 bytes exceeds limit of 131072 bytes",
        frames(" " * 131_073),
    ),
    "a frame far over the limit": (
        "close 1009 frame with 9000000 bytes exceeds limit of 131072 bytes",
        frames(" " * 9_000_000),
    ),
    "text that is none": ("close 1007", wire_bytes(b"\x81\x81" + MASK + b"\xff")),
    "a frame without a mask": ("close 1002 incorrect masking", wire_bytes(b"\x81\x02[]")),
    "a frame of no kind": ("close 1002 invalid opcode", wire_bytes(b"\x87\x80" + MASK)),
    "no JSON in a frame": ("NOTICE invalid: malformed", frames("hello")),
    "no array in a frame": ("NOTICE invalid: malformed", frames("{}")),
    "an empty array in a frame": ("NOTICE invalid: malformed", frames("[]")),
    "no verb": ("NOTICE invalid: malformed", frames("[1, 2]")),
    "an unknown verb": ("NOTICE invalid: malformed", frames('["SHOUT", {}]')),
    "a verb that is not served": ("NOTICE unsupported: feature_unavailable", frames('["COUNT", "s", {}]')),
    "EVENT without one": ("NOTICE invalid: malformed", frames('["EVENT"]')),
    "EVENT with two": ("NOTICE invalid: malformed", frames('["EVENT", {}, {}]')),
    "EVENT deep": ("NOTICE invalid: malformed", frames('["EVENT",' + "[" * 100_000)),
    "EVENT with no event": ("OK invalid: malformed", frames('["EVENT", {}]')),
    "EVENT too large": ("OK invalid: too_large", event_frame(changed(content="x" * 66_000))),
    "EVENT badly signed": ("OK invalid: bad_signature", event_frame(changed(sig="ab" * 64))),
    "EVENT by no member": (
        "OK restricted: not_a_member",
        event_frame(said_by(lambda relay: stranger(relay).message(relay.person("bob")))),
    ),
}


TOO_SLOW: dict[str, tuple[str, Ask]] = {
    "a length too long": ("408 request_timeout, ended", raw(head("content-length: 3") + b"{}")),
    "nothing at all": ("ended", raw()),
    "half a request": ("408 request_timeout, ended", raw(head()[:-2])),
    "line ends for ever": ("408 request_timeout, ended", raw(*[b"\r\n"] * 15, pause_s=0.1)),
    "a body that trickles in": ("408 request_timeout, ended", slow_body),
    "too many large bodies": ("408 request_timeout, ended; 503 unavailable, ended", large_bodies_that_wait),
    "a reader that does not read": ("cut off", sent_for_ever(head(method="GET", path="/openapi.json") * 100)),
    "a frame that does not end": ("close 4007 slow_writer", wire_bytes(b"\x81\xfe\x01\x00" + MASK)),
    "a message in pieces that does not end": ("close 4007 slow_writer", wire_bytes(b"\x01\x81" + MASK + b"[")),
    "a WebSocket that is never heard of again": ("101, ended", half_open),
    "a WebSocket that does not read": ("cut off", sent_for_ever(HANDSHAKE, (b"\x81\x8a" + MASK + b'["nobody"]') * 100)),
    "a flood of pings": ("cut off", sent_for_ever(HANDSHAKE, (b"\x89\xfd" + MASK + b"x" * 125) * 100)),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_it_is_refused_by_name_and_leaves_no_trace(relay: RunningRelay, name: str) -> None:
    _refused(relay, *BAD_INPUT[name])


@pytest.mark.parametrize("name", TOO_SLOW)
def test_who_is_too_slow_is_ended_and_leaves_no_trace(hasty: RunningRelay, name: str) -> None:
    _refused(hasty, *TOO_SLOW[name])


def _refused(relay: RunningRelay, expected: str, ask: Ask) -> None:
    seq, memory = relay.head_seq(), relay.memory_bytes()
    assert ask(relay) == expected
    _until_calm(relay)
    assert relay.head_seq() == seq
    assert relay.metric("holdfast_body_bytes") == 0
    assert relay.memory_bytes() - memory < MEMORY_GROWTH_MAX


@pytest.mark.parametrize("which", ["relay", "hasty"])
def test_after_all_of_it_the_relay_is_ready_and_has_met_no_mistake_of_its_own(
    request: pytest.FixtureRequest, which: str
) -> None:
    relay: RunningRelay = request.getfixturevalue(which)
    assert str(post(lambda relay: encode(good(relay)))(relay)) == "201"
    assert relay.ask("GET", "/readyz").status == 200
    assert relay.metric("holdfast_bugs_total") == 0
    assert [line for line in relay.log() if line["level"] in ("error", "critical")] == []
    assert os.waitid(os.P_PID, relay.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
