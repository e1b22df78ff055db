"""Administration: who may do what, and what it changes."""

import asyncio
import hashlib
import json
from typing import Any

import msgspec
import pytest

from holdfast.protocol.action import (
    Action,
    AddMember,
    Block,
    CreateMesh,
    RegisterConsumer,
    RemoveConsumer,
    RenameMember,
    RevokeMember,
    Role,
    SetRole,
    Unsubscribe,
    WithdrawInvite,
)
from holdfast.protocol.administration import from_event, join, rotate_member_key, vouched
from holdfast.protocol.history import Kind
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.topic_key import key_id
from tests.people import MESH, Person, public_key
from tests.relay.place import SECRET, Place, make_topic


def test_a_key_is_rotated_only_when_every_subscriber_has_the_next_one(place: Place) -> None:
    place.settle()
    make_topic(place, place.bob)
    place.expect(201, place.carol.subscribe("news"), place.alice.grant("news", 2, [place.alice, place.bob]))
    place.refused(Refusal.GRANT_MISSING, place.alice.advance("news", 1))
    place.expect(201, place.carol.administer(Unsubscribe(topic="news")), place.alice.advance("news", 1))
    place.refused(Refusal.EPOCH_SUPERSEDED, place.alice.advance("news", 1))
    place.refused(Refusal.EPOCH_SUPERSEDED, place.alice.grant("news", 4, [place.alice]))
    place.refused(Refusal.STALE_KEY, place.alice.post("news", key_epoch=1))
    place.expect(201, place.alice.post("news", key_epoch=2))


def test_two_keepers_cannot_split_a_topics_key(place: Place) -> None:
    """Whoever stages the next key for some, and another keeper another key for the rest: neither becomes current."""
    place.settle()
    make_topic(place, place.bob)
    place.expect(201, place.alice.administer(SetRole(member=place.bob.member, role=Role.ADMIN)))
    of_bob = key_id(MESH, "news", 2, b"k" * 32)
    grants = place.bob.grant("news", 2, [place.bob])
    other = msgspec.structs.replace(from_event(grants).action, key_id=of_bob)
    place.expect(201, place.alice.grant("news", 2, [place.alice, place.bob]), place.bob.administer(other))
    place.refused(Refusal.GRANT_MISSING, place.alice.advance("news", 1))
    place.expect(201, place.alice.grant("news", 2, [place.bob]), place.alice.advance("news", 1))
    place.refused(Refusal.EPOCH_SUPERSEDED, place.bob.administer(other))
    place.expect(201, place.alice.post("news", key_epoch=2), place.bob.post("news", key_epoch=2))


def test_in_a_mesh_that_nobody_founded_nobody_does_anything_not_even_an_operator(place: Place) -> None:
    operator, stranger = Person("operator", mesh="nowhere"), Person("mallory", mesh="nowhere")
    added = AddMember(member="m", name="m", key=stranger.key, role=Role.ADMIN)
    place.refused(Refusal.MESH_UNKNOWN, operator.administer(added))
    place.refused(Refusal.MESH_UNKNOWN, operator.invite(SECRET))
    place.refused(Refusal.MESH_UNKNOWN, stranger.join(SECRET))
    place.expect(201, stranger.found_mesh(), local=True)
    place.expect(201, operator.invite(SECRET))


def test_an_invitation_admits_one_person_once(place: Place) -> None:
    place.expect(201, place.alice.found_mesh(), local=True)
    place.refused(Refusal.INVITE_INVALID, place.bob.join(SECRET))
    place.expect(201, place.alice.invite(SECRET, role=Role.ADMIN, hours=1))
    joining = place.bob.join(SECRET)
    place.expect(201, joining)
    place.expect(200, joining)
    place.refused(Refusal.INVITE_INVALID, place.carol.join(SECRET))
    place.expect(201, place.alice.invite(b"t" * 32, hours=1))
    place.now += 3_600_000_000
    assert "expired" in place.refused(Refusal.INVITE_INVALID, place.carol.join(b"t" * 32)).detail
    assert [row[3] for row in place.rows("SELECT * FROM member ORDER BY member")] == ["admin", "admin"]


def test_founding_a_mesh_takes_an_operator_or_the_relays_own_machine(place: Place) -> None:
    place.refused(Refusal.NOT_PERMITTED, place.alice.found_mesh())
    founding = place.alice.found_mesh()
    place.expect(201, founding, local=True)
    place.expect(200, founding)
    place.refused(Refusal.NAME_TAKEN, place.bob.found_mesh(), local=True)
    place.operator.mesh = "01OTHER"
    place.expect(201, place.operator.found_mesh())


def test_an_operator_vouches_for_somebody_elses_mesh(place: Place) -> None:
    asked = CreateMesh(name="friends", member=place.alice.member, member_name="alice", key=place.alice.key)
    operator = place.operator.secret
    place.refused(Refusal.NOT_PERMITTED, place.alice.administer(vouched(place.bob.secret, MESH, asked, bytes(32))))
    elsewhere = vouched(operator, "01OTHER", asked, bytes(32))
    place.refused(Refusal.COUNTERSIGNATURE_MISSING, place.alice.administer(elsewhere))
    place.refused(Refusal.NOT_PERMITTED, place.bob.administer(vouched(operator, MESH, asked, bytes(32))))
    founding = place.alice.administer(vouched(operator, MESH, asked, bytes(32)))
    place.expect(201, founding)
    place.expect(200, founding)
    ((sender,),) = place.rows("SELECT sender FROM history WHERE kind = 'admin'")
    assert sender == place.alice.member  # what a founder's device has sent stands in the history as its own
    place.expect(201, place.alice.invite(SECRET))


def test_an_old_administration_event_cannot_be_played_again_under_a_new_id(place: Place) -> None:
    place.settle()
    place.alice.counter -= 1
    place.refused(Refusal.COUNTER_NOT_INCREASING, place.alice.invite(b"u" * 32))


STANDING: dict[str, tuple[Action, set[str]]] = {
    "add a member": (
        AddMember(member="d", name="dave", key=Person("dave").key, role=Role.MEMBER),
        {"alice", "operator"},
    ),
    "revoke somebody": (RevokeMember(member="member-bob"), {"alice", "bob", "operator"}),
    "rename somebody": (RenameMember(member="member-bob", name="robert"), {"alice", "bob", "operator"}),
    "give a role": (SetRole(member="member-bob", role=Role.ADMIN), {"alice", "operator"}),
    "block somebody": (Block(member="member-alice"), {"alice", "bob", "carol"}),
}


@pytest.mark.parametrize("name", STANDING)
@pytest.mark.parametrize("who", ["alice", "bob", "carol", "operator", "mallory"])
def test_who_may_do_what(place: Place, name: str, who: str) -> None:
    action, allowed = STANDING[name]
    place.settle()
    person = getattr(place, who, None) or Person(who)
    if who in allowed:
        place.expect(201, person.administer(action))
    else:
        place.refused(Refusal.NOT_PERMITTED, person.administer(action))


def test_consumers_are_the_operators_matter(place: Place) -> None:
    place.settle()
    place.refused(Refusal.NOT_PERMITTED, place.alice.administer(RemoveConsumer(consumer="lake"), mesh="relay"))
    place.refused(Refusal.SUBJECT_UNKNOWN, place.operator.administer(RemoveConsumer(consumer="lake"), mesh="relay"))
    log_id = place.relay.head().log_id
    action = RegisterConsumer(consumer="lake", log_id=log_id.hex(), seq=1)
    place.expect(201, place.operator.administer(action, mesh="relay"))
    assert asyncio.run(place.relay.consumer("lake"))["seq"] == 1
    place.expect(201, place.operator.administer(RemoveConsumer(consumer="lake"), mesh="relay"))


def test_the_last_admin_cannot_leave_the_others_alone(place: Place) -> None:
    place.settle()
    leaving = RevokeMember(member=place.alice.member)
    place.refused(Refusal.LAST_ADMIN, place.alice.administer(leaving))
    place.refused(Refusal.LAST_ADMIN, place.alice.administer(SetRole(member=place.alice.member, role=Role.MEMBER)))
    place.expect(201, place.alice.administer(SetRole(member=place.bob.member, role=Role.ADMIN)))
    place.expect(201, place.alice.administer(leaving))


def test_a_key_is_one_members_for_ever(place: Place) -> None:
    place.settle()
    again = AddMember(member="d", name="dave", key=place.bob.key, role=Role.MEMBER)
    place.refused(Refusal.KEY_TAKEN, place.alice.administer(again))
    new = Person("bob's new key")
    rotation = rotate_member_key(new.secret, MESH, place.bob.member, bytes(32))
    forged = msgspec.structs.replace(rotation, member=place.carol.member)
    place.refused(Refusal.COUNTERSIGNATURE_MISSING, place.alice.administer(forged))
    old = place.bob.message(place.carol)
    place.expect(201, old, place.bob.administer(rotation))
    place.refused(Refusal.STALE_KEY, place.bob.message(place.carol))
    place.refused(Refusal.STALE_KEY, place.alice.message(place.bob))
    place.expect(200, old)
    place.refused(Refusal.KEY_TAKEN, place.alice.administer(again))


def test_nothing_under_a_new_key_overtakes_what_waits_under_the_old_one(place: Place) -> None:
    """A sender that rotates its key has both in one batch, for what it signed before is signed anew only when it must be."""
    place.settle()
    new = Person("bobs-new-key", epoch=place.bob.head().epoch)
    place.expect(201, place.bob.administer(rotate_member_key(new.secret, MESH, place.bob.member, bytes(32))))
    batch = (place.bob.message(place.carol), new.message(place.carol), new.message(place.alice))
    refusals = [answer.refusal for answer in place.publish(*batch)]
    assert refusals == [Refusal.STALE_KEY, Refusal.HELD_BACK, None]


def test_a_revoked_member_loses_its_queue_its_key_and_its_topics_at_once(place: Place) -> None:
    place.settle()
    make_topic(place, place.bob, place.carol)
    sent = place.bob.message(place.carol)
    place.expect(201, place.alice.message(place.bob), place.alice.message(place.bob), sent)
    place.expect(201, place.alice.administer(RevokeMember(member=place.bob.member)))
    dropped = place.entries(Kind.DROPPED)
    assert [entry.recipient for entry in dropped] == [place.bob.member] * 2
    place.refused(Refusal.NOT_A_MEMBER, place.bob.message(place.carol))
    place.refused(Refusal.DESTINATION_UNKNOWN, place.alice.message(place.bob))
    assert place.rows("SELECT member FROM delivery WHERE state = 'open'") == [(place.carol.member,)]
    assert "member-bob" not in {member for (member,) in place.rows("SELECT member FROM subscription")}


def test_the_history_tells_administration_with_its_own_words(place: Place) -> None:
    place.settle()
    entry = place.entries(Kind.ADMIN)[0]
    assert json.loads(entry.detail)["action"] == "create_mesh"
    assert (entry.destination_kind, entry.destination_ref) == ("admin", MESH)


def test_a_mesh_is_shown_to_its_members_and_operators_only(place: Place) -> None:
    place.settle()
    make_topic(place, place.bob)
    shown = _document(place, place.bob.key)
    assert [(m["name"], m["role"], m["pubkey"]) for m in shown["members"]] == [
        ("alice", "admin", place.alice.key),
        ("bob", "member", place.bob.key),
        ("carol", "member", place.carol.key),
    ]
    assert shown["topics"] == [
        {
            "topic": "news",
            "key_epoch": 1,
            "key_id": place.alice.key_id("news", 1),
            "created_by": place.alice.member,
            "subscribers": [{"member": place.bob.member, "has_key": True}],
            "left": [],
        }
    ]
    assert _document(place, place.operator.key) == shown
    place.expect(201, place.bob.administer(Unsubscribe(topic="news")))
    assert _document(place, place.bob.key)["topics"][0]["left"] == [place.bob.member]
    for stranger in (Person("mallory").key,):
        with pytest.raises(Refused, match="not_a_member"):
            asyncio.run(place.relay.mesh(MESH, stranger))
        with pytest.raises(Refused, match="not_a_member"):
            asyncio.run(place.relay.grants(MESH, "news", stranger))
    grants = asyncio.run(place.relay.grants(MESH, "news", place.bob.key))
    assert [grant["key_epoch"] for grant in grants["grants"]] == [1]
    assert asyncio.run(place.relay.grants(MESH, "news", place.carol.key))["grants"] == []


def _document(place: Place, reader: str) -> dict[str, Any]:
    document = asyncio.run(place.relay.mesh(MESH, reader)).document
    assert document is not None
    return document


def test_whoever_loses_the_right_to_invite_cannot_come_back_by_an_earlier_invitation(place: Place) -> None:
    place.settle()
    place.expect(201, place.alice.administer(SetRole(member=place.bob.member, role=Role.ADMIN)))
    place.expect(201, place.alice.administer(SetRole(member=place.carol.member, role=Role.ADMIN)))
    place.expect(201, place.bob.invite(b"b" * 32, role=Role.ADMIN), place.carol.invite(b"c" * 32, role=Role.ADMIN))
    place.expect(201, place.alice.administer(RevokeMember(member=place.bob.member)))
    place.expect(201, place.alice.administer(SetRole(member=place.carol.member, role=Role.MEMBER)))
    for secret in (b"b" * 32, b"c" * 32):
        assert "withdrawn" in place.refused(Refusal.INVITE_INVALID, Person("mallory").join(secret)).detail


def test_a_withdrawn_invitation_is_void_and_a_used_one_stays_used(place: Place) -> None:
    place.settle()
    place.expect(201, place.alice.invite(SECRET))
    withdrawal = WithdrawInvite(key=public_key(SECRET))
    place.expect(201, place.alice.administer(withdrawal))
    place.refused(Refusal.INVITE_INVALID, Person("dave").join(SECRET))
    used = public_key(hashlib.sha256(b"bob").digest())
    before = place.rows(f"SELECT used_at, withdrawn_at FROM invite WHERE key = '{used}'")
    place.expect(201, place.alice.administer(WithdrawInvite(key=used)))
    assert place.rows(f"SELECT used_at, withdrawn_at FROM invite WHERE key = '{used}'") == before
    place.refused(Refusal.INVITE_INVALID, place.alice.administer(WithdrawInvite(key="ab" * 32)))


def test_an_operator_that_becomes_a_member_is_still_known_for_what_it_sent_before(place: Place) -> None:
    founding = CreateMesh(name="friends", member=place.alice.member, member_name="alice", key=place.alice.key)
    first = place.operator.administer(founding)
    place.expect(201, first)
    joining = AddMember(member="op", name="operator", key=place.operator.key, role=Role.MEMBER)
    place.expect(201, place.operator.administer(joining))
    place.expect(200, first)


def test_a_member_cannot_take_the_name_under_which_a_stranger_is_known(place: Place) -> None:
    place.settle()
    mallory = Person("mallory")
    place.expect(201, place.alice.invite(SECRET))
    action = join(SECRET, MESH, place.operator.key, "mallory", mallory.key, bytes(32))
    place.expect(201, mallory.administer(action, client_message_id="theirs"))
    place.expect(201, place.operator.administer(RevokeMember(member=place.bob.member), client_message_id="theirs"))
    assert place.entries(Kind.ADMIN)[-1].sender == f"key:{place.operator.key}"
