"""AUTH on a running relay: who shows a key reads its queue; whoever does not, reads nothing."""

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.protocol.connection_auth import AGE_S_MAX
from holdfast.protocol.event import encode, sign_event
from tests.relay.queue_client import Friends, QueueClient, connected, following, ids
from tests.relay.running import RunningRelay, running


@pytest.fixture(scope="module")
def one_relay(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("auth") / "relay") as started:
        yield started


@pytest.fixture
def friends(one_relay: RunningRelay) -> Friends:
    return Friends(one_relay)


def signed(client: QueueClient, secret: bytes, kind: int = 22242, **changed: str) -> dict[str, Any]:
    tags = {"relay": client.url, "challenge": client.challenge} | changed
    event = sign_event(secret, int(time.time()), kind, list(tags.items()), "", os.urandom(32))
    found: dict[str, Any] = json.loads(encode(event))
    return found


def test_a_member_that_answers_its_challenge_reads_its_queue(friends: Friends) -> None:
    (event,) = friends.send()
    with connected(friends.relay) as bob:
        answer = signed(bob, friends.bob.secret)
        assert bob.authenticate_with(answer) == ["OK", answer["id"], True, ""]
        bob.open(friends.mesh)
        assert ids(bob.until_live()) == [event.id]


def test_every_name_of_this_machine_will_do(friends: Friends) -> None:
    port = friends.relay.address[1]
    for url in (f"ws://127.0.0.1:{port}", f"ws://localhost:{port}/", f"http://[::1]:{port}"):
        with connected(friends.relay) as bob:
            assert bob.authenticate(friends.bob.secret, url=url)[2] is True


def test_challenges_differ(friends: Friends) -> None:
    with connected(friends.relay) as one, connected(friends.relay) as other:
        assert one.challenge != other.challenge
        assert len(bytes.fromhex(one.challenge)) == 32
        heard = other.authenticate_with(signed(one, friends.bob.secret))
        assert heard[2] is False, "what one connection was asked is no answer on another"


def refused(client: QueueClient, heard: Any, friends: Friends) -> None:
    """It was told so, and nothing can be read."""
    verb, _, accepted, text = heard
    assert (verb, accepted) == ("OK", False)
    assert text.startswith("auth-required: auth_failed: ")
    client.say("QUEUE", "q", {"mesh": friends.mesh})
    assert client.refused() == "auth_required"


def test_without_auth_nothing_is_read(friends: Friends) -> None:
    with connected(friends.relay) as nobody:
        nobody.say("QUEUE", "q", {"mesh": friends.mesh})
        frame = nobody.hear()
        assert frame[:3] == ["QUEUE", "q", "ERR"]
        assert frame[3].startswith("auth-required: auth_required: ")
        nobody.say("QUEUE", "q", "ACK", [1])
        assert nobody.refused() == "malformed"


def test_a_wrong_signature_is_refused(friends: Friends) -> None:
    with connected(friends.relay) as bob:
        answer = {**signed(bob, friends.bob.secret), "sig": "00" * 64}
        refused(bob, bob.authenticate_with(answer), friends)


def test_somebody_elses_signature_is_refused(friends: Friends) -> None:
    with connected(friends.relay) as bob:
        answer = {**signed(bob, friends.carol.secret), "pubkey": friends.bob.key}
        refused(bob, bob.authenticate_with(answer), friends)


@pytest.mark.parametrize("kind", [1, 4201, 27235])
def test_another_kind_is_refused(friends: Friends, kind: int) -> None:
    with connected(friends.relay) as bob:
        refused(bob, bob.authenticate_with(signed(bob, friends.bob.secret, kind)), friends)


def test_another_challenge_is_refused(friends: Friends) -> None:
    with connected(friends.relay) as bob:
        refused(bob, bob.authenticate(friends.bob.secret, challenge="ab" * 32), friends)


def test_what_is_meant_for_another_relay_is_refused(friends: Friends) -> None:
    with connected(friends.relay) as bob:
        refused(bob, bob.authenticate(friends.bob.secret, url="wss://relay.example.com"), friends)


@pytest.mark.parametrize("away_s", [-AGE_S_MAX - 60, AGE_S_MAX + 60])
def test_a_date_that_is_far_off_is_refused(friends: Friends, away_s: int) -> None:
    with connected(friends.relay) as bob:
        refused(bob, bob.authenticate(friends.bob.secret, at=away_s), friends)


def test_what_is_no_event_is_refused(friends: Friends) -> None:
    with connected(friends.relay) as bob:
        for nonsense in ({}, None, "event", [1], {**signed(bob, friends.bob.secret), "more": 1}):
            refused(bob, bob.authenticate_with(nonsense), friends)


def test_a_refused_answer_leaves_what_was_shown_before(friends: Friends) -> None:
    (event,) = friends.send()
    with following(friends.relay, friends.bob) as bob:
        bob.messages(1)
        bob.live()
        assert bob.authenticate(friends.carol.secret, challenge="cd" * 32)[2] is False
        assert bob.open(friends.mesh)["pending_count"] == 1
        assert ids(bob.until_live()) == [event.id]


def test_a_stranger_may_show_its_key_and_reads_nothing_by_it(friends: Friends) -> None:
    with connected(friends.relay) as stranger:
        assert stranger.authenticate(os.urandom(32))[2] is True
        stranger.say("QUEUE", "q", {"mesh": friends.mesh})
        frame = stranger.hear()
        assert frame[3].startswith("restricted: not_a_member: ")


def test_a_connection_with_several_keys_reads_as_whichever_is_a_member(friends: Friends) -> None:
    with connected(friends.relay) as bob:
        assert bob.authenticate(os.urandom(32))[2] is True
        assert bob.authenticate(friends.bob.secret)[2] is True
        bob.open(friends.mesh)
        bob.live()
