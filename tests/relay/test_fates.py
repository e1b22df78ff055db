"""What a sender can ask of its own messages: what became of each, from where it stopped, and whether an id was taken."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from holdfast.protocol.history import Kind
from tests.people import Person
from tests.relay.queue_client import Friends, eventually, following, soon
from tests.relay.running import RunningRelay, running


@pytest.fixture(scope="module")
def one_relay(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
    settings = "[limits]\nqueue_messages_max = 6\n[retention]\nsweep_interval_s = 1\n"
    with running(tmp_path_factory.mktemp("fates") / "relay", settings) as started:
        yield started


@pytest.fixture
def friends(one_relay: RunningRelay) -> Friends:
    return Friends(one_relay)


def fates(friends: Friends, person: Person, after: int = 0, limit: int | None = None) -> Any:
    more = "" if limit is None else f"&limit={limit}"
    return friends.get(person, f"/fates?after={after}{more}").document


def test_every_kind_of_fate_is_told_once_in_the_order_of_the_history(friends: Friends) -> None:
    friends.make_topic()
    alice, bob, carol = friends.alice, friends.bob, friends.carol
    (stored,) = friends.send()
    with following(friends.relay, bob) as reader:
        (first,) = reader.until_live()
        (live,) = friends.send()
        second = reader.message()
        reader.acknowledge([first.seq, second.seq])
    moderated = alice.message(bob)
    (answer,) = friends.taken(moderated)
    friends.moderate(answer["broker_message_id"], "rude")
    (expired,) = friends.send(expires_at=soon())
    eventually(lambda: len(friends.entries(Kind.EXPIRED)) == 1)
    friends.send(6, sender=carol, to=bob)
    full = alice.post("news")
    friends.taken(full)
    friends.taken(carol.block(alice))
    (blocked,) = friends.send(to=carol)
    friends.taken(alice.revoke(carol))
    told = fates(friends, alice)
    assert [
        (fate["kind"], fate["event_id"], fate["recipient"], fate["was_stored"], fate["reason"])
        for fate in told["fates"]
    ] == [
        ("delivered", stored.id, bob.member, True, None),
        ("delivered", live.id, bob.member, False, None),
        ("moderated", moderated.id, bob.member, None, "rude"),
        ("expired", expired.id, bob.member, None, None),
        ("full", full.id, bob.member, None, None),
        ("blocked", blocked.id, carol.member, None, None),
        ("dropped", full.id, carol.member, None, None),
    ]
    entries = {entry.seq: entry for entry in friends.entries()}
    for fate in told["fates"]:
        entry = entries[fate["seq"]]
        assert (fate["at"], fate["client_message_id"], fate["message_id"]) == (
            entry.at,
            entry.client_message_id,
            entry.message_id,
        )
    assert [fate["seq"] for fate in told["fates"]] == sorted(fate["seq"] for fate in told["fates"])
    assert told["through_seq"] == friends.relay.head_seq()
    assert fates(friends, bob)["fates"] == [], "they are for the sender"


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 1000])
def test_pages_of_fates_leave_nothing_out_and_repeat_nothing(friends: Friends, limit: int) -> None:
    friends.send(5)
    friends.drain(friends.bob)
    friends.send(2, sender=friends.carol)  # a few positions behind the last fate
    whole = fates(friends, friends.alice)["fates"]
    assert len(whole) == 5
    paged, after = [], 0
    while True:
        page = fates(friends, friends.alice, after, limit)
        paged += page["fates"]
        if page["through_seq"] == after:
            break
        after = page["through_seq"]
    assert paged == whole
    assert after == friends.relay.head_seq()
    friends.drain(friends.bob)
    friends.send()
    friends.drain(friends.bob)
    (new,) = fates(friends, friends.alice, after, limit)["fates"]
    assert new["kind"] == "delivered"


def test_a_page_of_fates_ends_with_the_entry_that_fills_it_however_many_were_left_out(friends: Friends) -> None:
    friends.make_topic()
    for recipient in (friends.bob, friends.carol):
        friends.send(6, to=recipient)
    posts = [friends.alice.post("news") for _ in range(3)]
    answers = [answer for post in posts for answer in friends.taken(post)]
    page = fates(friends, friends.alice, limit=3)
    assert [fate["event_id"] for fate in page["fates"]] == [posts[0].id] * 2 + [posts[1].id] * 2
    assert page["through_seq"] == answers[1]["history_id"]
    rest = fates(friends, friends.alice, page["through_seq"], limit=3)
    assert [fate["event_id"] for fate in rest["fates"]] == [posts[2].id] * 2
    assert rest["through_seq"] == friends.relay.head_seq()


def test_fates_are_for_current_members_and_asked_in_numbers(friends: Friends) -> None:
    stranger = Friends(friends.relay).alice
    assert str(friends.get(stranger, "/fates?after=0")) == "403 not_a_member"
    assert str(friends.relay.ask("GET", f"/v1/meshes/{friends.mesh}/fates")) == "401 auth_required"
    for query in ("after=-1", "after=x", "limit=0", "limit=1001", f"after={2**63}"):
        assert str(friends.get(friends.alice, f"/fates?{query}")).startswith("400 "), query
    assert friends.get(friends.alice, "/fates").document["fates"] == []


def test_a_sender_can_ask_whether_an_id_was_taken(friends: Friends) -> None:
    client_message_id = "an-id-of-my-own"
    event = friends.alice.message(friends.bob, client_message_id=client_message_id)
    assert friends.get(friends.alice, f"/sends/{client_message_id}").document == {"committed": False}
    (answer,) = friends.taken(event)
    found = friends.get(friends.alice, f"/sends/{client_message_id}").document
    assert found == {
        "committed": True,
        "event_id": event.id,
        "broker_message_id": answer["broker_message_id"],
        "history_id": answer["history_id"],
        "first_seen_at": next(entry.at for entry in friends.entries(Kind.ACCEPTED)),
    }
    assert friends.get(friends.bob, f"/sends/{client_message_id}").document == {"committed": False}, "its own sends"


@pytest.mark.parametrize("written", ["%00", "%C3%A9", "a%20b", "x" * 129])
def test_what_no_id_can_be_is_refused_on_every_engine(friends: Friends, written: str) -> None:
    assert str(friends.get(friends.alice, f"/sends/{written}")) == "400 malformed"


@pytest.mark.parametrize("client_message_id", ["a/b", "100%", "what?", "a#b", "a%2Fb", "..", "x;y=z&a+b"])
def test_any_id_can_be_asked_for(friends: Friends, client_message_id: str) -> None:
    friends.taken(friends.alice.message(friends.bob, client_message_id=client_message_id))
    found = friends.get(friends.alice, f"/sends/{quote(client_message_id, safe='')}").document
    assert found.get("committed") is True, found
