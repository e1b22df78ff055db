"""The daemon's local interface, through its real sockets: every answer to a send, and everybody who may not ask."""

import asyncio
import http.client
import json
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest
from structlog.testing import capture_logs

from holdfast.device import (
    administration,
    directory,
    inbox,
    ipc_documents,
    ipc_events,
    ipc_handlers,
    ipc_queries,
    ipc_service,
)
from holdfast.device import daemon as daemons
from holdfast.device.exported import EXPORTED
from holdfast.device.home import Home
from holdfast.device.ipc import REQUEST_BYTES_MAX, REQUESTS_MAX
from holdfast.device.ipc_events import STREAMS_MAX
from holdfast.protocol.idempotency import ANSWERS, Field, Fingerprint
from holdfast.protocol.outbox import Status
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.schedule import SECOND
from holdfast.store.world import wall_clock
from holdfast.wire.network import SystemNetwork
from tests.device.house import House, UnixConnection, at_home, furnish, mesh_of, new_house
from tests.people import Person

SEND = {"to": "bob", "message": "hello", "client_message_id": "the-id"}
OTHER = {**SEND, "message": "something else"}
PATIENCE_S = 60.0  # for what must happen


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One house for all tests that only ask, with both doors open."""
    with new_house(tmp_path_factory.mktemp("shared") / "home", port=0) as house:
        yield house


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with new_house(tmp_path / "home") as made:
        yield made


# The eleven rows


@pytest.mark.parametrize(("status", "compared"), [case for case in ANSWERS if case[0] is not None])
def test_a_repeated_send_is_answered_from_the_row_that_it_made(
    house: House, status: Status, compared: Fingerprint
) -> None:
    expected = ANSWERS[status, compared]
    first = house.ask("POST", "/v1/send", SEND)
    assert (first.status, first.document) == (202, {"client_message_id": "the-id", "status": "queued"})
    row = house.in_status(status, house.item("the-id"))
    answer = house.ask("POST", "/v1/send", SEND if compared is Fingerprint.MATCHES else OTHER)
    told = answer.document
    assert (answer.status, told["client_message_id"]) == (expected.http_status, "the-id")
    assert told.get("conflict") == expected.conflict
    assert {field for field in Field if field in told} == set(expected.carries)
    if expected.conflict:
        assert str(answer) == "409 idempotency_key_reused"
        assert told["daemon_fingerprint_prefix"] == _fingerprint(house)[:16]
    else:
        assert told.get("status") == expected.status
    if Field.BROKER_MESSAGE_ID in expected.carries:
        assert told["broker_message_id"] == row.broker_message_id is not None
    if Field.HISTORY_ID in expected.carries:
        assert (told["duplicate"], told["history_id"]) == (True, row.history_id)
    if Field.REASON in expected.carries:
        assert told["reason"] == row.last_error != ""
    assert house.ask("POST", "/v1/send", SEND if compared is Fingerprint.MATCHES else OTHER).document == told
    assert house.item("the-id") == row, "a repetition changes nothing"


def _fingerprint(house: House) -> str:
    ((found,),) = house.rows("SELECT request_fingerprint FROM operation_log WHERE client_message_id = 'the-id'")
    return bytes(found).hex()


def test_many_threads_with_one_id_leave_one_row_and_get_one_answer(house: House) -> None:
    barrier = threading.Barrier(16)

    def post(_: int) -> tuple[int, Any]:
        barrier.wait()
        answer = house.ask("POST", "/v1/send", SEND)
        return answer.status, answer.document

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(post, range(64)))
    assert answers == [(202, {"client_message_id": "the-id", "status": "queued"})] * 64
    assert house.rows("SELECT count(*) FROM operation_log WHERE client_message_id = 'the-id'") == [(1,)]
    assert [entry.client_message_id for entry in house.entries() if entry.kind == "enqueued"] == ["founding", "the-id"]


def test_an_answer_is_on_disk(tmp_path: Path) -> None:
    """Whoever looks at the file from outside sees the row that the answer speaks of."""
    with new_house(tmp_path / "home") as house:
        sent = house.ask("POST", "/v1/send", {"to": "bob", "message": "x"}).document["client_message_id"]
    with at_home(Home(tmp_path / "home")) as again:
        assert again.item(sent).status is Status.PENDING


def test_a_retry_is_answered_though_nobody_knows_the_recipient_any_more(house: House) -> None:
    assert house.ask("POST", "/v1/send", SEND).status == 202
    house.do(lambda tx: tx.run("DELETE FROM directory_member WHERE name = 'bob'"))
    house.loop.call_soon_threadsafe(house.service.daemon.learned)
    stranger = {**SEND, "client_message_id": "another-id"}
    assert str(house.ask("POST", "/v1/send", stranger)) == "404 destination_unknown"
    assert house.ask("POST", "/v1/send", SEND).document == {"client_message_id": "the-id", "status": "queued"}


class _Slow(SystemNetwork):
    """The relay is not there, and it takes a while to find that out."""

    def __init__(self) -> None:
        self.is_found_out = asyncio.Event()

    async def connect(self, *arguments: object) -> Any:
        await self.is_found_out.wait()
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_daemon_that_has_just_begun_says_that_it_knows_somebody_not_before_it_has_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dan came while nobody was here; whoever starts a daemon and writes to him in the same breath is not told that there is no Dan."""
    monkeypatch.setattr(daemons, "FIRST_LOOK_S", PATIENCE_S)
    network = _Slow()
    with new_house(tmp_path / "home", network=network) as house, ThreadPoolExecutor(3) as pool:
        to_dan, to_eve = ({"to": name, "message": "x", "client_message_id": name} for name in ("dan", "eve"))
        sends = [pool.submit(house.ask, "POST", "/v1/send", asked) for asked in (to_dan, to_eve)]
        administering = pool.submit(house.ask, "POST", "/v1/topic/subscribe", {"topic": "news"})
        _until(house, lambda: house.service.app.under_way == 3)
        assert str(house.ask("POST", "/v1/send", SEND)) == "202", "who is known need not wait"
        house.do(lambda tx: directory.replace(tx, mesh_of(house.me, house.bob, Person("dan"))))
        house.loop.call_soon_threadsafe(house.service.daemon.learned)
        assert [str(one.result()) for one in sends] == ["202", "404 destination_unknown"]
        assert str(administering.result()) == "503 unavailable"
        house.loop.call_soon_threadsafe(network.is_found_out.set)


def test_a_daemon_that_cannot_look_at_its_mesh_says_at_once_whom_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "FIRST_LOOK_S", 3600.0)
    network = _Slow()
    with new_house(tmp_path / "home", network=network) as house, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(house.ask, "POST", "/v1/send", {"to": "dan", "message": "x"})
        _until(house, lambda: house.service.app.under_way == 1)
        house.loop.call_soon_threadsafe(network.is_found_out.set)
        assert str(sending.result()) == "404 destination_unknown"
        assert str(house.ask("POST", "/v1/send", {"to": "dan", "message": "x"})) == "404 destination_unknown"


def test_whoever_waits_for_the_first_look_of_a_daemon_that_stops_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "FIRST_LOOK_S", 3600.0)
    patient = msgspec.structs.replace(ipc_service.LIMITS, drain_timeout_s=PATIENCE_S)
    monkeypatch.setattr(ipc_service, "LIMITS", patient)
    with ThreadPoolExecutor(2) as pool:
        with new_house(tmp_path / "home", network=_Slow()) as house:
            sending = pool.submit(house.ask, "POST", "/v1/send", {"to": "dan", "message": "x"})
            administering = pool.submit(house.ask, "POST", "/v1/topic/subscribe", {"topic": "news"})
            _until(house, lambda: house.service.app.under_way == 2)
        answers = [sending.result(), administering.result()]
    assert [str(answer) for answer in answers] == ["503 unavailable"] * 2
    assert ["the daemon is stopping" in answer.document["detail"] for answer in answers] == [True, True]


@pytest.mark.parametrize("header", ["the-id", '"the-id"', ' "the-id" '])
def test_the_id_may_come_as_idempotency_key_bare_or_quoted(house: House, header: str) -> None:
    bare = {"to": "bob", "message": "hello"}
    first = house.ask("POST", "/v1/send", bare, idempotency_key=header)
    assert first.document == {"client_message_id": "the-id", "status": "queued"}
    assert house.ask("POST", "/v1/send", SEND, idempotency_key=header).document == first.document
    assert house.ask("POST", "/v1/send", SEND).document == first.document


def test_two_different_ids_are_refused_and_neither_is_consumed(house: House) -> None:
    answer = house.ask("POST", "/v1/send", SEND, idempotency_key="another-id")
    assert str(answer) == "400 idempotency_keys_differ"
    assert house.rows("SELECT count(*) FROM operation_log WHERE client_message_id IN ('the-id', 'another-id')") == [
        (0,)
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "400 malformed"),
        (b"{", "400 malformed"),
        (b"[]", "400 malformed"),
        (b'"\xff"', "400 malformed"),
        ({"message": "x"}, "400 malformed"),
        ({"to": "bob"}, "400 malformed"),
        ({"to": "bob", "message": "x", "priority": "later"}, "400 malformed"),
        ({"to": "bob", "message": "x", "meta": []}, "400 malformed"),
        ({"to": "bob", "message": "x", "mesage": "y"}, "400 malformed"),
        ({"to": "", "message": "x"}, "400 malformed"),
        ({"to": "nobody", "message": "x"}, "404 destination_unknown"),
        ({"to": "@no-topic", "message": "x"}, "404 destination_unknown"),
        ({"to": "bob", "message": "x" * 40_001}, "413 too_large"),
        ({"to": "bob", "message": "x", "mentions": ["bob"] * 65}, "413 too_large"),
        ({"to": "bob", "message": "x", "expires_at": 1}, "400 malformed"),
    ],
)
def test_a_send_that_cannot_be_is_refused_and_consumes_no_id(house: House, body: Any, expected: str) -> None:
    named = {**body, "client_message_id": "the-id"} if isinstance(body, dict) else body
    assert str(house.ask("POST", "/v1/send", named)) == expected
    assert [entry.client_message_id for entry in house.entries()] == ["founding", "founding"]
    assert house.ask("POST", "/v1/send", SEND).status == 202


@pytest.mark.parametrize(("route", "to"), [("/v1/send", b'"to":"bob"'), ("/v1/topic/post", b'"topic":"news"')])
def test_a_send_that_is_nested_without_end_is_malformed(house: House, route: str, to: bytes) -> None:
    body = b"{" + to + b',"message":"x","meta":' + b'{"a":' * 100_000
    assert str(house.ask("POST", route, body)) == "400 malformed"


def test_a_post_to_a_topic_is_a_send_to_it(house: House) -> None:
    posted = house.ask("POST", "/v1/topic/post", {"topic": "news", "message": "hello", "client_message_id": "the-id"})
    assert posted.document == {"client_message_id": "the-id", "status": "queued"}
    row = house.item("the-id")
    assert (row.destination_kind, row.destination_ref) == ("topic", "news")
    as_send = {"to": "@news", "message": "hello", "client_message_id": "the-id"}
    assert house.ask("POST", "/v1/send", as_send).document == posted.document


# Who may ask


def test_the_socket_is_its_owners_alone(shared: House) -> None:
    mode = Path(shared.service.socket).stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    token = shared.device.home.path / "local-token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(shared.token) == 43  # 32 bytes in base64url


def test_the_port_takes_the_token_and_nothing_else(shared: House) -> None:
    for path in ("/v1/health", "/v1/version", "/v1/metrics", "/openapi.json", "/v1/inbox", "/nothing"):
        assert str(shared.ask_port("GET", path)) == "401 token_invalid", path
        wrong = shared.ask_port("GET", path, authorization=f"Bearer {shared.token}x")
        assert str(wrong) == "401 token_invalid", path
        assert wrong.headers["www-authenticate"] == "Bearer"
    assert str(shared.ask_port("POST", "/v1/send", SEND)) == "401 token_invalid"
    assert shared.ask_port("GET", "/v1/health", authorization=f"Bearer {shared.token}").status == 200
    assert shared.service.url is not None
    assert shared.service.url.startswith("http://127.0.0.1:")


def test_a_token_in_a_url_is_refused_and_reported_but_not_repeated(shared: House) -> None:
    for ask in (shared.ask, shared.ask_port):
        with capture_logs() as logged:
            answer = ask("GET", f"/v1/health?token={shared.token}", authorization=f"Bearer {shared.token}")
        assert str(answer) == "400 token_in_query"
        (event,) = [entry for entry in logged if entry["event"] == "security"]
        assert shared.token not in json.dumps(event) + answer.body.decode()


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "127.0.0.1.example.org", "10.0.0.1", "[::2]"])
def test_a_name_that_is_not_this_machines_is_refused(shared: House, host: str) -> None:
    assert str(shared.ask("GET", "/v1/health", host=host)) == "403 host_not_allowed"
    bearer = f"Bearer {shared.token}"
    assert str(shared.ask_port("GET", "/v1/health", host=host, authorization=bearer)) == "403 host_not_allowed"


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1", "[::1]:80", ""])
def test_this_machines_names_are_taken(shared: House, host: str) -> None:
    assert shared.ask("GET", "/v1/version", host=host).status == 200


@pytest.mark.parametrize("origin", ["https://example.org", "http://localhost", "null"])
def test_a_page_in_a_browser_is_refused(shared: House, origin: str) -> None:
    answer = shared.ask("POST", "/v1/send", SEND, origin=origin)
    assert str(answer) == "403 origin_not_allowed"
    assert "access-control-allow-origin" not in answer.headers
    preflight = shared.ask("OPTIONS", "/v1/send", origin=origin, access_control_request_method="POST")
    assert str(preflight) == "403 origin_not_allowed"


def test_what_is_not_there_is_said(shared: House) -> None:
    assert str(shared.ask("GET", "/v2/send")) == "404 not_found"
    wrong = shared.ask("GET", "/v1/send")
    assert (str(wrong), wrong.headers["allow"]) == ("405 method_not_allowed", "POST")
    assert shared.ask("HEAD", "/v1/events").status == 405
    assert str(shared.ask("GET", "/v1/trace/no-such-id")) == "404 not_found"
    assert str(shared.ask("GET", "/v1/outbox/no-such-id")) == "404 not_found"
    assert str(shared.ask("GET", "/v1/inbox/no-such-id")) == "404 not_found"
    assert str(shared.ask("POST", "/v1/administration/explode", {})) == "404 not_found"


# How much at once


def test_a_request_may_have_one_megabyte(shared: House) -> None:
    large = json.dumps({**SEND, "meta": {"x": "y"}}).encode().ljust(REQUEST_BYTES_MAX)
    assert str(shared.ask("POST", "/v1/inbox/ack", large)) == "400 malformed"
    assert str(shared.ask("POST", "/v1/inbox/ack", large + b" ")) == "413 too_large"


def test_beyond_sixty_four_requests_the_daemon_is_busy(house: House) -> None:
    """A writer that is held up keeps the sends waiting; what comes on top is told to come back."""
    hold, held = threading.Event(), threading.Event()

    def stand(_: Any) -> None:
        held.set()
        hold.wait(PATIENCE_S)

    blocker = threading.Thread(target=house.device.do, args=(stand,))
    blocker.start()
    assert held.wait(PATIENCE_S)
    with ThreadPoolExecutor(REQUESTS_MAX) as pool:
        bodies = [{"to": "bob", "message": "x", "client_message_id": f"id-{n}"} for n in range(REQUESTS_MAX)]
        sends = [pool.submit(house.ask, "POST", "/v1/send", body) for body in bodies]
        _until(house, lambda: house.service.app.under_way == REQUESTS_MAX)
        busy = house.ask("POST", "/v1/send", SEND)
        assert str(busy) == "429 daemon_busy"
        assert busy.headers["retry-after"] == "1"
        assert busy.document["temporary"] is True
        hold.set()
        assert {send.result().status for send in sends} == {202}
    blocker.join()
    assert house.ask("POST", "/v1/send", SEND).status == 202


def _until(house: House, holds: Any) -> None:
    async def wait() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.01)

    asyncio.run_coroutine_threadsafe(wait(), house.loop).result()


def test_thirty_two_streams_are_served_and_no_more(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of one who leaves is free at once, and not when something is next said to it."""
    monkeypatch.setattr(ipc_events, "KEEP_ALIVE_S", 3600.0)
    streams = [_stream(house) for _ in range(STREAMS_MAX)]
    answer = house.ask("GET", "/v1/events")
    assert str(answer) == "429 too_many_streams"
    assert house.ask("GET", "/v1/health").status == 200, "streams do not take the place of requests"
    streams.pop().close()
    _until(house, lambda: house.service.app.events.open_count < STREAMS_MAX)
    streams.append(_stream(house))
    for stream in streams:
        stream.close()


def _stream(house: House, **headers: str) -> http.client.HTTPConnection:
    connection = UnixConnection(house.service.socket)
    connection.request("GET", "/v1/events", headers={name.replace("_", "-"): value for name, value in headers.items()})
    assert connection.getresponse().status == 200
    return connection


# Reading


def test_pages_of_the_inbox_join_without_a_gap(house: House) -> None:
    house.store(*(house.arrival(house.bob.message(house.me, f"{n}".encode()), body=f"{n}".encode()) for n in range(7)))
    seen, after = [], 0
    while True:
        page = house.ask("GET", f"/v1/inbox?limit=3&after={after}").document
        seen += [message["body"] for message in page["messages"]]
        if page["next_after"] is None:
            break
        after = page["next_after"]
    assert seen == [str(n) for n in range(7)]


def test_the_inbox_is_filtered_by_topic_sender_time_and_state(house: House) -> None:
    carols = house.arrival(house.carol.message(house.me, b"from carol"), house.carol, b"from carol")
    posted = house.arrival(house.bob.post("news", b"posted"), body=b"posted")
    mentioned = house.arrival(house.bob.message(house.me, b"you there", mentions=(house.me.member,)), body=b"you there")
    first, second, third = house.store(carols, posted, mentioned)

    def bodies(query: str) -> list[str]:
        return [message["body"] for message in house.ask("GET", query).document["messages"]]

    assert bodies("/v1/inbox?from=carol") == ["from carol"]
    assert bodies(f"/v1/inbox?from={house.carol.key}") == ["from carol"]
    assert bodies("/v1/inbox?topic=news") == bodies("/v1/inbox?topic=@news") == ["posted"]
    assert bodies("/v1/mentions") == ["you there"]
    assert bodies("/v1/inbox?since=2999-01-01T00:00:00Z") == []
    assert len(bodies("/v1/inbox?since=2020-01-01")) == 3
    answer = house.ask("POST", "/v1/inbox/ack", {"ids": [first.id, "no-such-id"]}).document
    assert answer == {"applied": [first.id], "already": [], "unknown": ["no-such-id"]}
    assert house.ask("POST", "/v1/inbox/ack", {"ids": [first.id]}).document["already"] == [first.id]
    assert bodies("/v1/inbox?unapplied=true") == ["posted", "you there"]
    for _ in range(5):
        parked = house.ask("POST", "/v1/inbox/fail", {"id": second.id, "error": "it broke"}).document
    assert (parked["handler_attempts"], parked["last_error"]) == (5, "it broke")
    assert bodies("/v1/inbox?parked=true") == ["posted"]
    assert bodies("/v1/inbox?unapplied=true") == ["you there"]
    assert house.ask("GET", f"/v1/inbox/{third.id}").document["body"] == "you there"


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=501",
        "limit=x",
        "after=-2",
        "sender=bob",
        "unapplied=perhaps",
        "since=yesterday",
        "limit=1&limit=2",
    ],
)
def test_a_query_that_says_nothing_is_refused_and_not_ignored(shared: House, query: str) -> None:
    assert str(shared.ask("GET", f"/v1/inbox?{query}")) == "400 malformed"


def test_the_outbox_is_shown_by_status_and_destination_with_its_chain(house: House) -> None:
    dead = house.refuse(house.sent("bob", "lost"))
    waiting = house.sent("carol", "waiting")
    page = house.ask("GET", "/v1/outbox?status=dead,pending").document
    assert [item["id"] for item in page["items"]] == [dead.id, waiting.id]
    assert page["counts"] == {"scheduled": 0, "pending": 1, "inflight": 0, "done": 1, "dead": 1, "aborted": 0}
    assert [item["id"] for item in house.ask("GET", "/v1/outbox?to=carol").document["items"]] == [waiting.id]
    assert str(house.ask("GET", "/v1/outbox?status=lost")) == "400 malformed"
    refused = house.ask("POST", "/v1/outbox/requeue", {"id": dead.id})
    assert str(refused) == "503 requeue_unconfirmed", "the relay cannot be asked"
    asked = {"id": dead.id, "force": True, "patch": {"message": "found"}}
    done = house.ask("POST", "/v1/outbox/requeue", asked).document
    assert house.ask("POST", "/v1/outbox/requeue", asked).document == done, "the first answer may have been lost"
    assert done["aborted_row_id"] == dead.id
    found = house.ask("GET", f"/v1/outbox/{done['new_client_message_id']}").document
    assert [(item["id"], item["status"]) for item in found["chain"]] == [
        (dead.id, "aborted"),
        (done["new_row_id"], "pending"),
    ]
    assert house.content(house.item(done["new_row_id"])).body == b"found"
    assert str(house.ask("POST", "/v1/outbox/requeue", {"id": dead.id})) == "409 requeue_of_aborted"
    assert str(house.ask("POST", "/v1/outbox/requeue", {"id": "no-such-id"})) == "404 not_found"


def test_an_id_with_any_characters_can_be_traced(house: House) -> None:
    name = "a/b?c%d#e&f;g"
    assert house.ask("POST", "/v1/send", {**SEND, "client_message_id": name}).status == 202
    with house.client() as client:
        assert client.trace(name)["sent"]["client_message_id"] == name
        assert client.inspect(name).item.client_message_id == name


def test_a_scheduled_send_waits_outside_the_log(house: House) -> None:
    later = house.now + 3_600_000_000
    assert house.ask("POST", "/v1/send", {**SEND, "not_before": later}).document["status"] == "queued"
    assert house.rows("SELECT count(*) FROM operation_log WHERE client_message_id = 'the-id'") == [(0,)]
    page = house.ask("GET", "/v1/scheduled").document
    assert [(one["client_message_id"], one["not_before"]) for one in page["scheduled"]] == [("the-id", later)]
    assert house.ask("GET", "/v1/trace/the-id").document["sent"]["not_before"] == later


def test_a_scheduled_send_can_be_taken_back_until_it_has_a_sequence(house: House) -> None:
    later = house.now + 3_600_000_000
    house.ask("POST", "/v1/send", {**SEND, "not_before": later})
    assert house.ask("GET", "/v1/outbox").document["counts"]["scheduled"] == 1
    assert house.ask("GET", "/v1/scheduled?to=carol").document["scheduled"] == []
    assert len(house.ask("GET", "/v1/scheduled?to=bob").document["scheduled"]) == 1
    assert house.ask("GET", "/v1/scheduled?after=nothing").document["code"] == "not_found", "not the end of the list"
    cancelled = house.ask("POST", "/v1/outbox/cancel", {"id": "the-id"})
    assert (cancelled.status, cancelled.document["client_message_id"]) == (200, "the-id")
    assert cancelled.document["cancelled_at"] is not None
    with house.client() as client:
        assert msgspec.to_builtins(client.cancel("the-id")) == cancelled.document, "the first answer may have been lost"
        assert client.scheduled().scheduled == ()
    shown = house.ask("GET", "/v1/trace/the-id").document["sent"]
    assert (shown["status"], shown["state"], shown["not_before"]) == ("aborted", "aborted", later)
    assert [(rung["what"], rung.get("reason")) for rung in shown["rungs"]] == [
        ("accepted", None),
        ("aborted", "cancelled"),
    ]
    assert str(house.ask("POST", "/v1/send", {**SEND, "not_before": later})) == "409 idempotency_key_reused"
    house.sent("bob", "gone", client_message_id="sent")
    assert str(house.ask("POST", "/v1/outbox/cancel", {"id": "sent"})) == "409 cancel_too_late"
    assert str(house.ask("POST", "/v1/outbox/cancel", {"id": "nobody"})) == "404 not_found"
    assert str(house.ask("POST", "/v1/outbox/cancel", {})) == "400 malformed"


def test_health_says_who_and_how(house: House) -> None:
    house.sent()
    found = house.ask("GET", "/v1/health").document
    expected = {
        "connected": False,
        "queue_depth": 1,
        "inflight": 0,
        "mesh": house.facts.mesh,
        "member": house.facts.member,
        "member_pubkey": house.me.key,
        "seq": 3,
    }
    assert {name: found[name] for name in expected} == expected
    version = house.ask("GET", "/v1/version").document
    assert (version["mesh"], version["schema_version"]) == (house.facts.mesh, found["schema_version"])


def test_health_says_what_is_stuck_and_since_when(house: House) -> None:
    house.refuse(house.sent("carol"))
    oldest = house.settle(house.claim(house.sent("bob")), FaultKind.TIMEOUT, "no answer")
    house.sent("@news")
    house.ask("POST", "/v1/send", {**SEND, "not_before": house.now + 3_600_000_000})
    stored = house.store(*(house.arrival(house.bob.message(house.me)) for _ in range(3)))
    for _ in range(inbox.HANDLER_ATTEMPTS_MAX):
        house.ask("POST", "/v1/inbox/fail", {"id": stored[0].id, "error": "it raised"})
    house.ask("POST", "/v1/inbox/ack", {"ids": [stored[1].id]})
    house.store(house.arrival(house.bob.message(house.me), replayed=True))  # which nobody is to act on
    receipts_owed = len(house.receipts_owed())
    found = house.ask("GET", "/v1/health").document
    expected = {
        "queue_depth": 2 + receipts_owed,
        "inflight": 0,
        "oldest_waiting_at": oldest.enqueued_at,
        "oldest_waiting_reason": "timeout: no answer",
        "scheduled": 1,
        "dead": 1,
        "unapplied": 1,
        "parked": 1,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["oldest_waiting_s"] >= 0
    text = house.ask("GET", "/v1/metrics").body.decode()
    for line in ("outbox_dead 1.0", "outbox_scheduled 1.0", "inbox_parked 1.0", "inbox_unapplied 1.0"):
        assert f"holdfast_{line}" in text
    assert "holdfast_outbox_oldest_age_s" in text


def test_health_says_what_went_wrong_last(house: House) -> None:
    """Nobody is at the address of this home's relay."""
    give_up_at = time.monotonic() + PATIENCE_S
    while (found := house.ask("GET", "/v1/health").document)["last_error"] is None:
        assert time.monotonic() < give_up_at
    assert "no connection" in found["last_error"]
    assert found["last_error_at"] >= found["started_at"]


def test_nothing_waits_in_a_new_home(house: House) -> None:
    found = house.ask("GET", "/v1/health").document
    nothing = ("oldest_waiting_at", "oldest_waiting_s", "oldest_waiting_reason")
    assert [found[name] for name in nothing] == [None, None, None]
    assert [found[name] for name in ("queue_depth", "dead", "parked", "unapplied", "scheduled")] == [0] * 5


def test_peers_are_those_of_the_directory(shared: House) -> None:
    found = shared.ask("GET", "/v1/peers").document
    assert {(peer["name"], peer["is_me"]) for peer in found["peers"]} == {
        ("me", True),
        ("bob", False),
        ("carol", False),
    }


def test_metrics_count_what_waits_and_what_was_asked(house: House) -> None:
    house.sent()
    house.ask("GET", "/v1/peers")
    text = house.ask("GET", "/v1/metrics").body.decode()
    assert "holdfast_outbox_waiting 1.0" in text
    assert "holdfast_connected 0.0" in text
    assert 'holdfast_requests_total{route="/v1/peers",status="200"} 1.0' in text


def test_administration_without_a_relay_says_that_it_is_away(shared: House) -> None:
    answer = shared.ask("POST", "/v1/topic/subscribe", {"topic": "news"})
    assert str(answer) == "503 unavailable"
    assert answer.document["trouble"]["kind"] == "Unreachable"


# The export


def test_the_history_is_exported_as_the_relays_is(house: House) -> None:
    house.sent()
    answer = house.ask("GET", "/v1/export/history")
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert answer.headers["holdfast-as-of-seq"] == answer.headers["holdfast-next-after"] == "3"
    assert answer.headers["holdfast-log-id"] == house.ask("GET", "/v1/health").document["log_id"]
    found = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    assert [(row["seq"], row["kind"]) for row in found] == [(1, "enqueued"), (2, "relayed"), (3, "enqueued")]


def test_operations_are_exported_by_the_position_of_their_first_entry(house: House) -> None:
    sent = house.refuse(house.sent())
    answer = house.ask("GET", "/v1/export/operation?after=2")
    (row,) = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    assert (row["seq"], row["id"], row["status"], row["destination_ref"]) == (3, sent.id, "dead", house.bob.member)
    assert "blob" not in row
    columns = ",".join(EXPORTED["operation"].schema.names)
    whole = pa.ipc.open_stream(house.ask("GET", f"/v1/export/operation?columns={columns}").body).read_all()
    assert whole.column("blob").to_pylist()[0] == b"{}"


def test_the_inbox_is_exported_each_message_once(house: House) -> None:
    event = house.bob.message(house.me, b"sealed")
    ((stored,),) = [house.store(house.arrival(event, body=None))]
    again = house.arrival(house.bob.message(house.me, b"x", client_message_id=event.tags[1][1]))
    house.store(house.arrival(event, body=None), again)
    from holdfast.device import arrivals
    from holdfast.protocol.payload import Payload

    house.do(lambda tx: arrivals.reopen(tx, house.facts, house.now, [(str(stored.id), Payload(body=b"opened"))]))
    answer = house.ask("GET", "/v1/export/inbox?columns=seq,id,status,body")
    assert pa.ipc.open_stream(answer.body).read_all().to_pylist() == [
        {"seq": 3, "id": stored.id, "status": "stored", "body": b"opened"}
    ]


def test_what_people_wrote_leaves_through_the_socket_only(shared: House) -> None:
    bearer = f"Bearer {shared.token}"
    for table, column in (("inbox", "body"), ("inbox", "meta"), ("operation", "blob"), ("operation", "request")):
        path = f"/v1/export/{table}?columns=seq,{column}"
        assert str(shared.ask_port("GET", path, authorization=bearer)) == "403 socket_only"
        assert shared.ask("GET", path).status == 200
    assert shared.ask_port("GET", "/v1/export/inbox", authorization=bearer).status == 200
    payloads = {field.name for table in EXPORTED.values() for field in table.schema if field.metadata is not None}
    assert payloads == ipc_handlers.PAYLOAD_COLUMNS


# The description


def test_the_description_is_of_the_routes_that_answer(shared: House) -> None:
    found = shared.ask("GET", "/openapi.json").document
    assert found["openapi"] == "3.1.0"
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            answer = shared.ask(method.upper(), re.sub(r"\{\w+\}", "x", path)) if path != "/v1/events" else None
            assert answer is None or b"nothing at this path" not in answer.body, (path, method)
            assert answer is None or answer.status != 405, (path, method)
            assert operation["security"] == [{"local": []}]
            assert all(_resolves(found, reference) for reference in _references(operation))
    documented = {name for name, shape in vars(ipc_documents).items() if isinstance(shape, type(msgspec.Struct))}
    assert documented <= found["components"]["schemas"].keys()


def test_the_description_names_every_parameter_that_is_read(shared: House) -> None:
    found = shared.ask("GET", "/openapi.json").document["paths"]
    for path, shape in (
        ("/v1/inbox", ipc_queries.InboxQuery),
        ("/v1/outbox", ipc_queries.OutboxQuery),
        ("/v1/mentions", ipc_queries.PageQuery),
        ("/v1/scheduled", ipc_queries.ScheduledQuery),
    ):
        named = {one["name"] for one in found[path]["get"]["parameters"]}
        assert named == {field.encode_name for field in msgspec.structs.fields(shape)}, path


def test_the_page_for_people_names_every_route_and_every_verb(shared: House) -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text().split("## The daemon's own interface")[1]
    for path in shared.ask("GET", "/openapi.json").document["paths"]:
        assert re.sub(r"\{(\w+)\}", lambda named: named[1].upper(), path) in page, path
    for verb in administration.VERBS:
        assert f"`{verb}" in page or f"{verb}`" in page, verb


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/inbox", ipc_documents.InboxPage),
        ("/v1/outbox?status=pending,done,dead", ipc_documents.OutboxPage),
        ("/v1/outbox/the-id", ipc_documents.Inspection),
        ("/v1/peers", ipc_documents.Peers),
        ("/v1/health", ipc_documents.Health),
        ("/v1/version", ipc_documents.Version),
        ("/v1/compat", ipc_documents.Compatibility),
        ("/v1/reports", ipc_documents.Reports),
        ("/v1/scheduled", ipc_documents.ScheduledPage),
    ],
)
def test_an_answer_has_exactly_the_fields_that_are_described(house: House, path: str, shape: Any) -> None:
    house.ask("POST", "/v1/send", SEND)
    house.ask("POST", "/v1/send", {**SEND, "client_message_id": "later", "not_before": house.now + 10**10})
    house.store(house.arrival(house.bob.message(house.me)), house.arrival(house.bob.post("news"), body=b"\xff"))
    raw = house.ask("GET", path).body
    _same_fields(json.loads(raw), json.loads(msgspec.json.encode(msgspec.json.decode(raw, type=shape))))


def _same_fields(raw: Any, read: Any) -> None:
    """What was said, and what somebody reads who knows the description alone."""
    if isinstance(raw, dict):
        assert raw.keys() <= read.keys()
        for name, value in raw.items():
            _same_fields(value, read[name])
    elif isinstance(raw, list):
        for one, other in zip(raw, read, strict=True):
            _same_fields(one, other)
    else:
        assert raw == read


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "$ref":
                yield value
            else:
                yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def _resolves(document: Any, reference: str) -> bool:
    return reference.rpartition("/")[2] in document["components"]["schemas"]


# Beginning and end


def test_a_socket_that_a_dead_daemon_left_is_replaced(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    furnish(home)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(home.path / "daemon.sock"))
    with at_home(home) as house:
        assert house.ask("GET", "/v1/version").status == 200
    assert not (home.path / "daemon.sock").exists()


def test_a_new_token_is_taken_at_once_and_the_old_one_for_a_minute_more(tmp_path: Path) -> None:
    ahead_s = 0
    home = Home(tmp_path / "home")
    furnish(home)
    with at_home(home, port=0, clock=lambda: wall_clock() + ahead_s * SECOND) as house:
        old = house.token
        by_port = house.ask_port("POST", "/v1/token/rotate", authorization=f"Bearer {old}")
        assert str(by_port) == "403 socket_only"
        assert house.token == old
        until = house.ask("POST", "/v1/token/rotate").document["old_until"]
        new = house.token
        assert new != old
        assert stat.S_IMODE((home.path / "local-token").stat().st_mode) == 0o600
        assert 0 < until - wall_clock() <= 60 * SECOND
        for ahead_s, taken in ((0, {old: 200, new: 200}), (61, {old: 401, new: 200}), (-3600, {old: 401, new: 200})):
            for token, status in taken.items():
                found = house.ask_port("GET", "/v1/version", authorization=f"Bearer {token}").status
                assert found == status, (ahead_s, token == old)
        ahead_s = 0
        house.ask("POST", "/v1/token/rotate")
        assert house.ask_port("GET", "/v1/version", authorization=f"Bearer {old}").status == 401, "two tokens ago"


def test_the_token_stays_across_restarts(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    furnish(home)
    tokens = []
    for _ in range(2):
        with at_home(home, port=0) as house:
            tokens.append(house.token)
            assert house.ask_port("GET", "/v1/version", authorization=f"Bearer {house.token}").status == 200
    assert tokens[0] == tokens[1]
