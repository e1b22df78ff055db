"""Who asks over HTTP: a signature for this request, this minute and no second time."""

import base64
import hashlib
from typing import Any

import pytest

from holdfast.protocol import keys
from holdfast.protocol.event import Event, encode, sign_event
from holdfast.protocol.http_auth import SCHEME, authorization
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.relay.http_auth import WINDOW_S, HttpAuth
from tests.people import secret_of

SECRET = secret_of("alice")
URL = "http://127.0.0.1:7447/v1/consumers/c?x=1"
BODY = b'{"seq": 1}'
NOW_S = 1_800_000_000
GOOD = (("u", URL), ("method", "PUT"), ("payload", hashlib.sha256(BODY).hexdigest()))


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> int:
        return self.now_s * 1_000_000 + 999_999


def credentials(
    tags: Any = GOOD, *, kind: int = 27235, at_s: int = NOW_S, content: str = "", secret: bytes = SECRET
) -> str:
    return base64.b64encode(encode(sign_event(secret, at_s, kind, tags, content, bytes(32)))).decode()


def verified(text: str, auth: HttpAuth, body: bytes = BODY) -> Event:
    return auth.verify(text, "PUT", {URL, "https://relay.example/v1/consumers/c?x=1"}, body)


def started_long_ago(clock: Clock, **limits: int) -> HttpAuth:
    now_s, clock.now_s = clock.now_s, clock.now_s - 3_600
    auth = HttpAuth(clock, **limits)
    clock.now_s = now_s
    return auth


def signer(text: str, auth: HttpAuth | None = None, body: bytes = BODY) -> str:
    """Who asks, if it is somebody who may."""
    auth = auth or started_long_ago(Clock())
    event = verified(text, auth, body)
    auth.spend(event)
    return event.pubkey


def test_the_signer_of_this_very_request_is_known() -> None:
    assert signer(credentials()) == keys.public_key(SECRET)


@pytest.mark.parametrize("difference_s", [-WINDOW_S, WINDOW_S])
def test_a_clock_may_be_off_by_a_minute(difference_s: int) -> None:
    assert signer(credentials(at_s=NOW_S + difference_s))


def test_any_name_of_the_relay_will_do() -> None:
    assert signer(credentials((("u", "https://relay.example/v1/consumers/c?x=1"), *GOOD[1:])))


def test_a_request_without_a_body_needs_no_hash_and_a_hash_that_is_there_must_be_right() -> None:
    assert signer(credentials(GOOD[:2]), body=b"")
    assert signer(credentials((*GOOD[:2], ("payload", hashlib.sha256(b"").hexdigest()))), body=b"")
    with pytest.raises(Refused, match="its payload is not the hash"):
        signer(credentials(), body=b"")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "Input data was truncated"),
        ("****", "it is not base64"),
        (base64.b64encode(b"{}").decode(), "missing required field"),
        (credentials(kind=1), "its kind is 1, not 27235"),
        (credentials(at_s=NOW_S - WINDOW_S - 1), "it is dated 1799999939, the relay's clock says 1800000000"),
        (credentials(at_s=NOW_S + WINDOW_S + 1), "it is dated 1800000061"),
        (credentials(GOOD[1:]), "it has 0 tags 'u', it must have one"),
        (credentials((*GOOD, ("u", URL))), "it has 2 tags 'u', it must have one"),
        (credentials((("u", URL + "2"), *GOOD[1:])), "it is for 'http://127.0.0.1:7447/v1/consumers/c"),
        (credentials((("u",), *GOOD[1:])), "it is for ''"),
        (credentials((GOOD[0], ("method", "GET"), GOOD[2])), "it is for the method 'GET', this is PUT"),
        (credentials((GOOD[0], ("method", "put"), GOOD[2])), "it is for the method 'put', this is PUT"),
        (credentials(GOOD[:2]), "it has 0 tags 'payload', it must have one"),
        (credentials((*GOOD[:2], ("payload", "00" * 32))), "its payload is not the hash of this body"),
    ],
)
def test_another_event_is_refused_and_its_fault_named(text: str, fault: str) -> None:
    with pytest.raises(Refused) as refused:
        signer(text)
    assert refused.value.refusal is Refusal.AUTH_FAILED
    assert fault in refused.value.detail


@pytest.mark.parametrize("field", ["id", "sig"])
def test_an_event_that_nobody_signed_is_refused(field: str) -> None:
    raw = encode(sign_event(SECRET, NOW_S, 27235, GOOD, "", bytes(32)))
    at = raw.index(f'"{field}":"'.encode()) + len(field) + 4
    forged = raw[:at] + (b"0" if raw[at : at + 1] != b"0" else b"1") + raw[at + 1 :]
    with pytest.raises(Refused) as refused:
        signer(base64.b64encode(forged).decode())
    assert refused.value.refusal is Refusal.AUTH_FAILED


def test_an_event_counts_once_for_as_long_as_it_would_count() -> None:
    clock = Clock()
    auth = started_long_ago(clock)
    early = credentials(at_s=NOW_S + WINDOW_S)
    assert signer(early, auth)
    for later_s in range(2 * WINDOW_S + 1):
        clock.now_s = NOW_S + later_s
        with pytest.raises(Refused, match="it was used before"):
            signer(early, auth)
    clock.now_s += 1
    with pytest.raises(Refused, match="it is dated"):
        signer(early, auth)


def test_a_refused_event_is_not_used_up() -> None:
    auth = started_long_ago(Clock())
    with pytest.raises(Refused, match="its payload"):
        signer(credentials(), auth, body=b"other")
    assert signer(credentials(), auth)


def test_more_events_than_can_be_remembered_are_put_off_and_forgotten_in_time() -> None:
    clock = Clock()
    auth = started_long_ago(clock, seen_max=3)
    for number in range(3):
        assert signer(credentials(content=str(number)), auth)
    with pytest.raises(Refused) as refused:
        signer(credentials(content="one more"), auth)
    assert refused.value.refusal is Refusal.UNAVAILABLE
    clock.now_s += WINDOW_S + 1
    assert signer(credentials(at_s=clock.now_s), auth)


def test_the_header_that_clients_send_is_understood_and_covers_the_body() -> None:
    scheme, _, text = authorization(SECRET, URL, "PUT", BODY, NOW_S, bytes(16), bytes(32)).partition(" ")
    assert (scheme, signer(text)) == (SCHEME, keys.public_key(SECRET))
    with pytest.raises(Refused, match="its payload is not the hash"):
        signer(text, body=b"other")


def test_strangers_who_are_refused_leave_nothing_behind_however_many_they_are() -> None:
    auth = started_long_ago(Clock(), seen_max=3)
    for number in range(10):
        verified(credentials(content=str(number), secret=secret_of("stranger")), auth)
    assert signer(credentials(), auth)


def test_one_key_cannot_use_up_the_memory_for_all() -> None:
    clock = Clock()
    auth = started_long_ago(clock, seen_max=100, seen_of_key_max=3)
    for number in range(3):
        assert signer(credentials(content=str(number)), auth)
    with pytest.raises(Refused) as refused:
        signer(credentials(content="one more"), auth)
    assert refused.value.refusal is Refusal.RATE_LIMITED
    assert signer(credentials(secret=secret_of("bob")), auth)
    clock.now_s += WINDOW_S + 1
    assert signer(credentials(at_s=clock.now_s), auth)


def test_an_event_that_was_used_before_a_restart_is_not_good_after_it() -> None:
    clock = Clock()
    used = credentials(at_s=NOW_S)
    assert signer(used, started_long_ago(clock))
    clock.now_s += 1
    restarted = HttpAuth(clock)
    clock.now_s += 1
    with pytest.raises(Refused, match="before the relay started at 1800000001") as refused:
        signer(used, restarted)
    assert refused.value.refusal is Refusal.AUTH_FAILED
    assert signer(credentials(at_s=clock.now_s), restarted)


def test_a_clock_that_is_set_back_after_the_start_locks_nobody_out() -> None:
    clock = Clock()
    auth = HttpAuth(clock)
    clock.now_s -= 3_600
    assert signer(credentials(at_s=clock.now_s), auth)
