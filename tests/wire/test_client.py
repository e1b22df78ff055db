"""The client of a relay: every answer, and the lack of one, becomes a yes, a refusal or a fault; nothing is unbounded."""

import asyncio
import base64
import gzip
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import httpx2 as httpx
import pytest

from holdfast.protocol import event, keys
from holdfast.protocol.reaction import Confirmation, FaultKind, RelaySays
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused, problem
from holdfast.wire import client as wire_client
from holdfast.wire.client import InvalidUrl, RelayClient, Unreachable, relay_url
from holdfast.wire.response import RESPONSE_BYTES_MAX

SECRET = b"\x07" * 32
NOW = 1_800_000_000_000_000
URL = "http://relay.example:7447"
YES = {
    "broker_message_id": "01B",
    "client_message_id": "01C",
    "history_id": 7,
    "log_id": "0" * 32,
    "duplicate": False,
    "skipped": [],
    "anchor": {"log_id": "0" * 32, "seq": 7, "chain": "1" * 64, "sig": "2" * 128},
}
EVENT = b'{"id": "something"}'

T = TypeVar("T")
Handler = Callable[[httpx.Request], httpx.Response]


def _ask(handler: Handler, question: Callable[[RelayClient], Awaitable[T]]) -> T:
    async def run() -> T:
        transport = httpx.MockTransport(handler)
        async with RelayClient(URL, SECRET, clock=lambda: NOW, random=bytes, transport=transport) as client:
            return await question(client)

    return asyncio.run(run())


def _publish(handler: Handler) -> wire_client.Said:
    return _ask(handler, lambda client: client.publish(EVENT))


def _answer(status: int, body: Any = None, **headers: str) -> Handler:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda request: httpx.Response(status, content=content, headers=headers)


def _fail(error: type[httpx.TransportError]) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error("the world", request=request)

    return handler


def test_a_publication_carries_exactly_the_bytes_that_were_given() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(201, json=YES)

    assert _publish(handler).says is Confirmation.CREATED
    assert [(r.method, str(r.url), r.content) for r in seen] == [("POST", f"{URL}/v1/messages", EVENT)]
    assert "authorization" not in seen[0].headers  # the event is its own proof


SAID: dict[str, tuple[Handler, RelaySays]] = {
    "created": (_answer(201, YES), Confirmation.CREATED),
    "known": (_answer(200, {**YES, "duplicate": True, "history_available": True}), Confirmation.DUPLICATE),
    "known, its history gone": (
        _answer(200, {**YES, "duplicate": True, "history_available": False}),
        Confirmation.DUPLICATE_PRUNED,
    ),
    "a newer relay's yes": (_answer(201, {**YES, "weather": "fine"}), Confirmation.CREATED),
    "a yes without ids": (_answer(201, {"ok": True}), FaultKind.NOT_UNDERSTOOD),
    "a yes with a broken anchor": (_answer(201, {**YES, "anchor": {"log_id": "x"}}), FaultKind.NOT_UNDERSTOOD),
    "a yes without an anchor": (
        _answer(201, {name: value for name, value in YES.items() if name != "anchor"}),
        FaultKind.NOT_UNDERSTOOD,
    ),
    "a yes that is no text": (_answer(201, b"\xff\xfe"), FaultKind.NOT_UNDERSTOOD),
    "a proxy's page": (_answer(200, b"<html>sign in</html>"), FaultKind.NOT_UNDERSTOOD),
    "a compressed answer": (
        _answer(201, gzip.compress(json.dumps(YES).encode()), **{"content-encoding": "gzip"}),
        FaultKind.NOT_UNDERSTOOD,
    ),
    "elsewhere": (_answer(307, b"", location="http://evil.example/"), FaultKind.NOT_UNDERSTOOD),
    "not found by somebody": (_answer(404, b"nothing here"), FaultKind.NOT_UNDERSTOOD),
    "an error without a code": (_answer(502, b"bad gateway"), FaultKind.SERVER_ERROR),
    "a code that is not ours": (
        _answer(403, {"type": "about:blank", "code": "not_permitted"}),
        FaultKind.NOT_UNDERSTOOD,
    ),
    "a code from the future": (
        _answer(403, {"type": "urn:holdfast:refusal:too_tired", "code": "too_tired"}),
        FaultKind.NOT_UNDERSTOOD,
    ),
    "no connection": (_fail(httpx.ConnectError), FaultKind.CONNECTION_LOST),
    "no connection in time": (_fail(httpx.ConnectTimeout), FaultKind.TIMEOUT),
    "no answer in time": (_fail(httpx.ReadTimeout), FaultKind.TIMEOUT),
    "a broken connection": (_fail(httpx.ReadError), FaultKind.CONNECTION_LOST),
    "an answer that is no HTTP": (_fail(httpx.RemoteProtocolError), FaultKind.CONNECTION_LOST),
}


@pytest.mark.parametrize("name", SAID)
def test_every_answer_has_its_meaning(name: str) -> None:
    handler, says = SAID[name]
    said = _publish(handler)
    assert said.says is says
    assert (said.yes is not None) == isinstance(says, Confirmation)
    assert (said.detail == "") == isinstance(says, Confirmation)


@pytest.mark.parametrize("refusal", Refusal)
def test_every_refusal_comes_back_as_itself(refusal: Refusal) -> None:
    said = _publish(_answer(REFUSALS[refusal].http_status, problem(refusal, "the detail"), **{"retry-after": "9"}))
    assert (said.says, said.detail, said.retry_after_s) == (refusal, "the detail", 9)


@pytest.mark.parametrize(
    ("text", "expected"), [("12", 12), ("", None), ("Wed, 21 Oct", None), ("-1", None), ("9" * 99, None)]
)
def test_only_a_plain_number_of_seconds_is_waited_for(text: str, expected: int | None) -> None:
    said = _publish(_answer(429, problem(Refusal.RATE_LIMITED, "x"), **{"retry-after": text}))
    assert said.retry_after_s == expected


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    read = itertools.count()

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            while True:
                next(read)
                yield b"x" * 65_536

    said = _publish(lambda request: httpx.Response(200, stream=Endless()))
    assert said.says is FaultKind.NOT_UNDERSTOOD
    assert next(read) <= RESPONSE_BYTES_MAX // 65_536 + 2


def test_reading_a_mesh_proves_who_reads() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"topic": "a/b", "key_epoch": 0, "grants": []})

    grants = _ask(handler, lambda client: client.grants("01MESH", "a/b"))
    assert grants.topic == "a/b"
    (request,) = seen
    assert request.url.raw_path == b"/v1/meshes/01MESH/grants?topic=a%2Fb"
    scheme, _, encoded = request.headers["authorization"].partition(" ")
    proof = event.decode(base64.b64decode(encoded))
    event.verify(proof)
    assert (scheme, proof.pubkey, proof.kind) == ("Nostr", keys.public_key(SECRET), 27235)
    assert proof.created_at == NOW // 1_000_000
    assert proof.tags[:2] == (("u", f"{URL}/v1/meshes/01MESH/grants?topic=a%2Fb"), ("method", "GET"))


def test_two_proofs_of_one_second_differ_because_each_is_good_once() -> None:
    seen: set[str] = set()

    def handler(request: httpx.Request) -> httpx.Response:
        seen.add(event.decode(base64.b64decode(request.headers["authorization"].removeprefix("Nostr "))).id)
        return httpx.Response(200, json={"mesh": "m", "name": "m", "members": [], "topics": []})

    async def ask_twice() -> None:
        transport = httpx.MockTransport(handler)
        async with RelayClient(URL, SECRET, clock=lambda: NOW, transport=transport) as client:
            await client.mesh("m")
            await client.mesh("m")

    asyncio.run(ask_twice())
    assert len(seen) == 2


def test_a_mesh_that_has_not_changed_is_not_fetched_again() -> None:
    tags, asked = ['"1"', '"1"', '"2"'], []

    def handler(request: httpx.Request) -> httpx.Response:
        tag = tags.pop(0)
        asked.append(request.headers.get("if-none-match"))
        if asked[-1] == tag:
            return httpx.Response(304, headers={"etag": tag})
        document = {"mesh": "m", "name": f"revision {tag}", "members": [], "topics": []}
        return httpx.Response(200, json=document, headers={"etag": tag})

    async def ask(client: RelayClient) -> list[wire_client.Mesh]:
        return [await client.mesh("m") for _ in range(3)]

    first, second, third = _ask(handler, ask)
    assert asked == [None, '"1"', '"1"']
    assert first is second
    assert [first.name, third.name] == ['revision "1"', 'revision "2"']


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_is_nested_without_end_is_not_understood(status: int) -> None:
    """A relay could end every daemon with it otherwise."""
    with pytest.raises(Unreachable):
        _ask(_answer(status, b'{"x":' * 100_000), lambda client: client.mesh("m"))


MEMBER = {"member": "a", "pubkey": "0" * 64, "name": "ann", "role": "member", "status": "active", "keys": []}
TOPIC = {"topic": "t", "key_epoch": 1, "created_by": "a", "subscribers": [], "left": []}
SENSELESS_MESHES: dict[str, dict[str, Any]] = {
    "a key that is none": {"members": [{**MEMBER, "pubkey": "bob"}], "topics": []},
    "a time that no database holds": {
        "members": [{**MEMBER, "keys": [{"pubkey": "0" * 64, "since": 2**63}]}],
        "topics": [],
    },
    "an end that no database holds": {
        "members": [{**MEMBER, "keys": [{"pubkey": "0" * 64, "since": 1, "until": 2**63}]}],
        "topics": [],
    },
    "a negative key epoch": {"members": [], "topics": [{**TOPIC, "key_epoch": -1}]},
    "a member that no message can name": {"members": [{**MEMBER, "member": "nobody at all"}], "topics": []},
    "a topic that no message can name": {"members": [], "topics": [{**TOPIC, "topic": "no such thing"}]},
}


@pytest.mark.parametrize("what", SENSELESS_MESHES)
def test_a_mesh_that_could_not_be_kept_or_sent_to_is_not_understood(what: str) -> None:
    """The daemon would end when it writes it down, or seals a message to somebody in it."""
    with pytest.raises(Unreachable, match="not a Holdfast relay's"):
        _ask(_answer(200, {"mesh": "m", "name": "m", **SENSELESS_MESHES[what]}), lambda client: client.mesh("m"))


def test_a_relay_that_promises_to_remember_ids_beyond_all_times_is_not_understood() -> None:
    """The daemon would end when it computes since when a send has waited for too long."""
    shown = {"pubkey": "0" * 64, "features": {"dedupe": {"mode": "retention_scoped", "days": 2**60}}}
    with pytest.raises(Unreachable, match="not a Holdfast relay's"):
        _ask(_answer(200, shown), lambda client: client.information())


def test_a_fate_at_a_time_that_could_not_be_kept_is_not_understood() -> None:
    fate = {"seq": 1, "at": 2**63, "kind": "delivered", "client_message_id": "c", "message_id": "m", "event_id": "e"}
    found = {"log_id": "0" * 32, "through_seq": 1, "fates": [{**fate, "recipient": "a"}]}
    with pytest.raises(Unreachable, match="not a Holdfast relay's"):
        _ask(_answer(200, found), lambda client: client.fates("m", 0))


def test_a_mesh_whose_keys_the_relay_calls_stale_is_fetched_whole() -> None:
    """However it came about that we know another key than the relay: `unchanged` would keep it so for ever."""
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(200, json={"answers": [{"status": 412, **problem(Refusal.STALE_KEY, "")}]})
        asked.append(request.headers.get("if-none-match"))
        return httpx.Response(
            200, json={"mesh": "m", "name": "m", "members": [], "topics": []}, headers={"etag": '"1"'}
        )

    async def ask(client: RelayClient) -> None:
        await client.mesh("m")
        (said,) = await client.publish_all([b"{}"])
        assert said.says is Refusal.STALE_KEY
        await client.mesh("m")

    _ask(handler, ask)
    assert asked == [None, None]


class _Drops(httpx.AsyncByteStream):
    """A body that never ends, of which there is always another byte."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0)


def test_an_answer_that_comes_byte_by_byte_without_end_is_waited_for_no_longer_than_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire_client, "EXCHANGE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(wire_client, "RESPONSE_BYTES_MAX", 2**40)
    with pytest.raises(Unreachable, match="no whole answer") as raised:
        _ask(lambda request: httpx.Response(200, stream=_Drops()), lambda client: client.information())
    assert raised.value.fault is FaultKind.TIMEOUT


def test_no_cookie_of_a_relay_is_kept() -> None:
    """A relay that sets another one with every answer would fill the memory."""
    sent = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("cookie"))
        return httpx.Response(200, json={"pubkey": "0" * 64}, headers={"set-cookie": f"c{len(sent)}=x; Max-Age=9999"})

    async def ask(client: RelayClient) -> None:
        await client.information()
        await client.information()

    _ask(handler, ask)
    assert sent == [None, None]


def test_a_relay_that_says_unchanged_to_somebody_who_knows_nothing_is_not_understood() -> None:
    with pytest.raises(Unreachable):
        _ask(_answer(304, b""), lambda client: client.mesh("m"))


def test_a_read_that_is_refused_or_fails_says_so() -> None:
    with pytest.raises(Refused, match="who are you") as raised:
        _ask(_answer(403, problem(Refusal.NOT_A_MEMBER, "who are you")), lambda client: client.mesh("m"))
    assert raised.value.refusal is Refusal.NOT_A_MEMBER
    with pytest.raises(Unreachable, match="not a Holdfast relay's"):
        _ask(_answer(200, {"name": "something else"}), lambda client: client.mesh("m"))
    with pytest.raises(Unreachable, match="not a Holdfast relay's"):
        _ask(_answer(200, {"name": "another relay", "pubkey": "me"}), lambda client: client.information())
    with pytest.raises(Unreachable, match="points to https://x"):
        _ask(_answer(301, b"", location="https://x"), lambda client: client.information())


URLS = {
    "http://127.0.0.1:7447": "http://127.0.0.1:7447",
    "http://127.0.0.1:7447/": "http://127.0.0.1:7447",
    " https://relay.example ": "https://relay.example",
    "HTTPS://Relay.Example/mesh/": "https://relay.example/mesh",
    "http://[::1]:7447": "http://[::1]:7447",
}
NO_URLS = ["", "relay.example", "ftp://relay.example", "ws://relay.example", "http://", "http://a@b", "http://a?x=1",
           "http://a#x", "http://a:port", "http://a:99999", "http://[::1", "file:///etc/passwd",
           "http://a..b", "http://.", f"http://{'a' * 64}.example", "http://a\0b", "http://a/\x01", "http://xn--ü.example",
           "http://\udcff"]  # fmt: skip


@pytest.mark.parametrize("text", URLS)
def test_an_address_has_one_spelling(text: str) -> None:
    assert relay_url(text) == URLS[text]


@pytest.mark.parametrize("text", NO_URLS)
def test_what_is_no_relays_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidUrl):
        relay_url(text)
