"""The client of a relay, asked about many things at once: batches of events, fates, what was committed."""

from typing import Any

import httpx2 as httpx
import pytest

from holdfast.protocol.reaction import Confirmation, FaultKind
from holdfast.protocol.refusal import REFUSALS, Refusal, problem
from holdfast.protocol.schedule import DedupeMode
from holdfast.wire.client import Committed, Fate, Fates, Said
from tests.wire.test_client import URL, YES, Handler, _answer, _ask, _fail

EVENTS = (b'{"id": "one"}', b'{"id": "two"}', b'{"id": "three"}')


def _publish(handler: Handler, *events: bytes) -> list[Said]:
    return _ask(handler, lambda client: client.publish_all(events or EVENTS))


def _no(refusal: Refusal, **members: Any) -> dict[str, Any]:
    return {**problem(refusal, "the detail"), "status": REFUSALS[refusal].http_status, **members}


def test_events_go_together_as_they_are_and_in_their_order() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"answers": [{"status": 201, **YES}] * 3})

    assert [said.says for said in _publish(handler)] == [Confirmation.CREATED] * 3
    assert (seen[0].method, str(seen[0].url)) == ("POST", f"{URL}/v1/messages")
    assert seen[0].content == b'[{"id": "one"},{"id": "two"},{"id": "three"}]'


def test_each_event_has_its_own_answer_and_wait() -> None:
    answers = [
        {"status": 200, **YES, "duplicate": True, "history_available": True, "first_seen_at": 5},
        _no(Refusal.RATE_LIMITED, retry_after_s=7),
        _no(Refusal.MALFORMED),
    ]
    first, second, third = _publish(_answer(200, {"answers": answers}))
    assert (first.says, first.yes is not None) == (Confirmation.DUPLICATE, True)
    assert (second.says, second.detail, second.retry_after_s) == (Refusal.RATE_LIMITED, "the detail", 7)
    assert (third.says, third.retry_after_s) == (Refusal.MALFORMED, None)


BROKEN: dict[str, tuple[Any, FaultKind]] = {
    "an answer that is none": ({}, FaultKind.NOT_UNDERSTOOD),
    "a yes without its fields": ({"status": 201}, FaultKind.NOT_UNDERSTOOD),
    "a no that nobody knows": ({"status": 418, "type": "about:blank", "code": "teapot"}, FaultKind.NOT_UNDERSTOOD),
    "trouble": ({"status": 500}, FaultKind.SERVER_ERROR),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_answer_that_is_not_understood_leaves_the_others_as_they_are(name: str) -> None:
    broken, fault = BROKEN[name]
    first, second, third = _publish(_answer(200, {"answers": [{"status": 201, **YES}, broken, {"status": 201, **YES}]}))
    assert (first.says, second.says, third.says) == (Confirmation.CREATED, fault, Confirmation.CREATED)


def test_fewer_answers_than_events_are_answers_to_none_of_them() -> None:
    said = _publish(_answer(200, {"answers": [{"status": 201, **YES}]}))
    assert [one.says for one in said] == [FaultKind.NOT_UNDERSTOOD] * 3


def test_a_no_to_all_of_them_is_each_ones() -> None:
    body = problem(Refusal.UNAVAILABLE, "not now")
    said = _publish(_answer(503, body, **{"retry-after": "9"}))
    assert [(one.says, one.retry_after_s) for one in said] == [(Refusal.UNAVAILABLE, 9)] * 3


def test_a_lost_connection_is_each_ones() -> None:
    assert [said.says for said in _publish(_fail(httpx.ReadError))] == [FaultKind.CONNECTION_LOST] * 3


def test_fates_are_asked_for_after_a_position_as_the_holder_of_our_key() -> None:
    fate = {"seq": 9, "at": 5, "kind": "delivered", "client_message_id": "01C", "message_id": "01B"}
    more = {"event_id": "ab" * 32, "recipient": "01R", "was_stored": True, "reason": None}
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"log_id": "0a" * 16, "through_seq": 12, "fates": [{**fate, **more}]})

    found = _ask(handler, lambda client: client.fates("01M/ESH", 7))
    assert str(seen[0].url) == f"{URL}/v1/meshes/01M%2FESH/fates?after=7"
    assert seen[0].headers["authorization"].startswith("Nostr ")
    assert isinstance(found, Fates)
    assert (found.through_seq, found.fates[0].recipient, found.fates[0].was_stored) == (12, "01R", True)
    assert isinstance(found.fates[0], Fate)


def test_whether_a_send_is_committed_is_asked_by_its_id() -> None:
    seen: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(200, json={"committed": True, "event_id": "ab" * 32, "broker_message_id": "01B"})

    found = _ask(handler, lambda client: client.committed("01MESH", "an id/with? signs"))
    assert found == Committed(committed=True, event_id="ab" * 32, broker_message_id="01B")
    assert seen == [f"{URL}/v1/meshes/01MESH/sends/an%20id%2Fwith%3F%20signs"]


@pytest.mark.parametrize(
    ("features", "mode", "days"),
    [
        ({}, DedupeMode.RETENTION_SCOPED, 7),
        ({"features": {"dedupe": {"mode": "permanent", "days": None}}}, DedupeMode.PERMANENT, None),
        ({"features": {"dedupe": {"mode": "retention_scoped", "days": 30}}}, DedupeMode.RETENTION_SCOPED, 30),
    ],
)
def test_how_long_a_relay_remembers_is_read_and_if_it_says_nothing_the_least_that_is_safe(
    features: dict[str, Any], mode: DedupeMode, days: int | None
) -> None:
    found = _ask(_answer(200, {"pubkey": "ab" * 32, **features}), lambda client: client.information())
    assert (found.features.dedupe.mode, found.features.dedupe.days) == (mode, days)
