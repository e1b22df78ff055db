"""AUTH: an event for this connection's challenge, this relay and this time, and for nothing else."""

import msgspec
import pytest

from holdfast.protocol.connection_auth import (
    AGE_S_MAX,
    CONNECTION_AUTH_KIND,
    check_connection_auth,
    normal_url,
    sign_connection_auth,
)
from holdfast.protocol.event import Event, sign_event
from holdfast.protocol.refusal import Refusal, Refused
from tests.people import public_key, secret_of

SECRET = secret_of("alice")
CHALLENGE = "3f" * 32
URL = "wss://relay.example.com"
AT_S = 1_800_000_000
GOOD_TAGS = (("relay", URL), ("challenge", CHALLENGE))


def made(
    *,
    kind: int = CONNECTION_AUTH_KIND,
    at_s: int = AT_S,
    tags: tuple[tuple[str, ...], ...] = GOOD_TAGS,
    content: str = "",
) -> Event:
    return sign_event(SECRET, at_s, kind, tags, content, bytes(32))


def refusal(event: Event, urls: tuple[str, ...] = (URL,), challenge: str = CHALLENGE) -> str:
    with pytest.raises(Refused) as caught:
        check_connection_auth(event, challenge, urls, AT_S)
    assert caught.value.refusal is Refusal.AUTH_FAILED
    return caught.value.detail


def test_what_a_client_signs_is_what_the_relay_takes() -> None:
    event = sign_connection_auth(SECRET, "HTTPS://Relay.Example.com/", CHALLENGE, AT_S, bytes(32))
    check_connection_auth(event, CHALLENGE, (URL,), AT_S)
    assert (event.kind, event.content, event.pubkey) == (22242, "", public_key(SECRET))
    assert event.tags == (("relay", URL), ("challenge", CHALLENGE))


@pytest.mark.parametrize("away_s", [-AGE_S_MAX, 0, AGE_S_MAX])
def test_its_date_may_differ_a_little(away_s: int) -> None:
    check_connection_auth(made(at_s=AT_S + away_s), CHALLENGE, (URL,), AT_S)


@pytest.mark.parametrize("away_s", [-AGE_S_MAX - 1, AGE_S_MAX + 1])
def test_its_date_may_not_differ_more(away_s: int) -> None:
    assert "dated" in refusal(made(at_s=AT_S + away_s))


def test_it_must_be_of_its_kind() -> None:
    assert "kind is 22241" in refusal(made(kind=22241))
    assert "kind is 27235" in refusal(made(kind=27235)), "what opens a door over HTTP opens none here"


def test_it_must_answer_this_challenge() -> None:
    assert "another challenge" in refusal(made(), challenge="40" * 32)
    assert "another challenge" in refusal(made(tags=(("relay", URL), ("challenge", ""))))


def test_it_must_be_for_this_relay() -> None:
    assert "it is for 'wss://other.example.com'" in refusal(
        made(tags=(("relay", "wss://other.example.com"), GOOD_TAGS[1]))
    )
    assert "this is ws://127.0.0.1:7447 or ws://localhost:7447" in refusal(
        made(), ("http://localhost:7447", "http://127.0.0.1:7447")
    )


@pytest.mark.parametrize("name", ["relay", "challenge"])
def test_each_tag_stands_once(name: str) -> None:
    assert f"0 tags '{name}'" in refusal(made(tags=tuple(tag for tag in GOOD_TAGS if tag[0] != name)))
    assert f"2 tags '{name}'" in refusal(made(tags=(*GOOD_TAGS, (name, "twice"))))
    bare = tuple((name,) if tag[0] == name else tag for tag in GOOD_TAGS)
    assert refusal(made(tags=bare)), "a tag without a value says nothing"


@pytest.mark.parametrize("field", ["sig", "pubkey", "id"])
def test_it_must_be_signed_by_whom_it_names(field: str) -> None:
    event = made()
    forged = {"sig": "00" * 64, "pubkey": public_key(secret_of("bob")), "id": "11" * 32}[field]
    assert refusal(msgspec.structs.replace(event, **{field: forged}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://127.0.0.1:7447", "ws://127.0.0.1:7447/"),
        ("https://Relay.Example.com", "wss://relay.example.com"),
        ("wss://relay.example.com//", "wss://relay.example.com"),
        ("wss://relay.example.com/Path", "https://relay.example.com/Path/"),
    ],
)
def test_one_address_may_be_written_in_several_ways(one: str, other: str) -> None:
    assert normal_url(one) == normal_url(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("wss://relay.example.com", "ws://relay.example.com"),
        ("ws://relay:1", "ws://relay:2"),
        ("ws://relay/a", "ws://relay/A"),
        ("ws://relay/a", "ws://relay"),
    ],
)
def test_other_addresses_stay_others(one: str, other: str) -> None:
    assert normal_url(one) != normal_url(other)
