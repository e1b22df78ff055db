"""What one mesh may have: each list of its document ends somewhere, so that its members can always read it."""

import asyncio
from pathlib import Path

import msgspec

from holdfast.protocol.action import NAME_CHARACTERS_MAX, AddMember, RenameMember, Role, Unsubscribe
from holdfast.protocol.administration import admit_author, rotate_member_key
from holdfast.protocol.event import Event
from holdfast.protocol.refusal import Refusal
from holdfast.protocol.tags import IDENTIFIER, INTEGER_MAX, TOPIC
from holdfast.protocol.topic_key import KEY_ID_BYTES
from holdfast.relay import documents
from holdfast.relay.information import information
from holdfast.relay.settings import Limits, MeshSettings, Settings
from holdfast.wire.response import RESPONSE_BYTES_MAX
from tests.people import MESH, Person, secret_of
from tests.relay.place import Place, make_topic, restarted

PACE = Limits(messages_per_s=1_000_000.0, messages_burst=1_000_000)


def _place(path: Path, **limits: int) -> Place:
    return Place(path / "relay.db", Settings(limits=PACE, mesh=MeshSettings(**limits)))


def _add(place: Place, name: str) -> Event:
    person = Person(name)
    return place.alice.administer(AddMember(member=person.member, name=person.name, key=person.key, role=Role.MEMBER))


def _rotate(signer: Person, new: str, of: Person) -> Event:
    return signer.administer(rotate_member_key(Person(new).secret, MESH, of.member, bytes(32)))


def _admit(member: Person, author: str) -> Event:
    return member.administer(admit_author(secret_of(author), MESH, member.member, bytes(32)))


def _refused(place: Place, event: Event, setting: str) -> None:
    assert setting in place.refused(Refusal.MESH_FULL, event).detail


def test_a_mesh_has_so_many_members_and_those_who_were_revoked_count(tmp_path: Path) -> None:
    place = _place(tmp_path, members_max=4).settle()
    place.expect(201, _add(place, "dave"))
    place.expect(201, place.alice.revoke(Person("dave")))
    _refused(place, _add(place, "erin"), "mesh.members_max")
    secret = b"e" * 32
    place.expect(201, place.alice.invite(secret))
    _refused(place, Person("erin").join(secret), "mesh.members_max")


def test_one_member_replaces_its_key_so_often_and_the_others_theirs(tmp_path: Path) -> None:
    place = _place(tmp_path, member_replaced_keys_max=1, replaced_keys_max=2).settle()
    place.expect(201, _rotate(place.bob, "bob-2", place.bob))
    _refused(place, _rotate(Person("bob-2"), "bob-3", place.bob), "mesh.member_replaced_keys_max")
    place.expect(201, _rotate(place.carol, "carol-2", place.carol))
    _refused(place, _rotate(place.alice, "alice-2", place.alice), "mesh.replaced_keys_max")
    place.expect(201, place.alice.revoke(place.bob), _add(place, "dave"))


def test_one_member_creates_so_many_topics_and_the_others_theirs(tmp_path: Path) -> None:
    place = _place(tmp_path, member_topics_max=2, topics_max=3).settle()
    place.expect(201, place.bob.create_topic("one"), place.bob.create_topic("two"))
    _refused(place, place.bob.create_topic("three"), "mesh.member_topics_max")
    place.expect(201, place.carol.create_topic("three"))
    _refused(place, place.alice.create_topic("four"), "mesh.topics_max")


def test_a_mesh_has_so_many_subscriptions_and_one_that_is_there_may_be_repeated(tmp_path: Path) -> None:
    place = _place(tmp_path, subscriptions_max=2).settle()
    place.expect(201, place.alice.create_topic("one"), place.alice.create_topic("two"))
    place.expect(201, place.bob.subscribe("one"), place.carol.subscribe("one"))
    _refused(place, place.bob.subscribe("two"), "mesh.subscriptions_max")
    place.expect(201, place.bob.subscribe("one"))
    place.expect(201, place.bob.administer(Unsubscribe(topic="one")), place.bob.subscribe("two"))


def test_one_member_admits_so_many_authors_and_one_of_them_may_be_repeated(tmp_path: Path) -> None:
    place = _place(tmp_path, member_authors_max=2).settle()
    place.expect(201, _admit(place.bob, "one"), _admit(place.bob, "two"), _admit(place.bob, "two"))
    _refused(place, _admit(place.bob, "three"), "mesh.member_authors_max")
    place.expect(201, _admit(place.carol, "three"), _admit(place.carol, "two"), _admit(place.bob, "four"))


def test_a_mesh_that_has_more_than_it_may_works_on_but_does_not_grow(tmp_path: Path) -> None:
    place = _place(tmp_path).settle()
    place.expect(201, *(place.bob.create_topic(name) for name in ("one", "two", "three")))
    place.expect(201, *(person.subscribe("one") for person in (place.alice, place.bob, place.carol)))
    place.expect(201, *(_admit(place.bob, author) for author in ("one", "two", "three")))
    place.expect(201, _rotate(place.carol, "carol-2", place.carol), _rotate(Person("carol-2"), "carol-3", place.carol))
    fewest = MeshSettings(**dict.fromkeys(MeshSettings.__struct_fields__, 1))
    restarted(place, Settings(limits=PACE, mesh=fewest))
    for event in (
        _add(place, "dave"),
        place.bob.create_topic("four"),
        place.bob.subscribe("two"),
        _admit(place.bob, "four"),
        _rotate(Person("carol-3"), "carol-4", place.carol),
    ):
        place.refused(Refusal.MESH_FULL, event)
    place.expect(201, place.bob.grant("one", 1, [place.alice, place.bob]), place.alice.message(place.bob))
    place.expect(201, place.bob.subscribe("one"), _admit(place.bob, "three"))
    place.expect(201, place.bob.administer(RenameMember(member=place.bob.member, name="robert")))
    place.expect(201, place.bob.administer(Unsubscribe(topic="one")), place.alice.revoke(place.carol))


def test_the_document_of_a_mesh_at_all_its_limits_is_one_that_clients_read_with_room_to_spare() -> None:
    limits = MeshSettings()
    size = len(msgspec.json.encode(_largest(limits)))
    assert size <= limits.document_bytes_max <= 0.9 * RESPONSE_BYTES_MAX
    for name in ("members_max", "replaced_keys_max", "topics_max", "subscriptions_max"):
        more = msgspec.structs.replace(limits, **{name: getattr(limits, name) + 1_000})
        grown = len(msgspec.json.encode(_largest(more))) - size
        assert grown <= more.document_bytes_max - limits.document_bytes_max, name


def test_what_a_member_reads_is_the_document_that_was_measured(tmp_path: Path) -> None:
    place = _place(tmp_path).settle()
    make_topic(place, place.bob, place.carol)
    place.expect(201, place.alice.revoke(place.carol))
    found = asyncio.run(place.relay.mesh(MESH, place.bob.key)).document
    assert msgspec.json.encode(msgspec.convert(found, documents.Mesh)) == msgspec.json.encode(found)


def test_a_topic_names_one_of_those_who_have_its_key_and_should_not(tmp_path: Path) -> None:
    """However many a keeper grants it to: its key has to be replaced all the same."""
    place = _place(tmp_path).settle()
    place.expect(201, place.bob.create_topic("news"), place.bob.subscribe("news"), _add(place, "dave"))
    people = [place.bob, place.carol, Person("dave")]
    place.expect(201, place.bob.grant("news", 1, people), place.bob.advance("news", 0))
    found = asyncio.run(place.relay.mesh(MESH, place.bob.key)).document
    assert found is not None
    assert found["topics"][0]["left"] == [place.carol.member]


def test_the_limits_are_told_to_whoever_asks() -> None:
    settings = Settings()
    told = msgspec.structs.asdict(information(settings, "00" * 32, bytes(16), 1, None).limitation)
    assert {
        f"mesh_{name}": value for name, value in msgspec.structs.asdict(settings.mesh).items()
    }.items() <= told.items()


def _largest(limits: MeshSettings) -> documents.Mesh:
    """The largest document that these limits allow."""
    member, name, key = "m" * IDENTIFIER.characters_max, "🐚" * NAME_CHARACTERS_MAX, "0" * 64
    keys = [documents.MemberKey(key, INTEGER_MAX, INTEGER_MAX)]
    plain = documents.Member(member, key, name, Role.MEMBER, "revoked", keys)
    replacing = msgspec.structs.replace(plain, keys=keys * (limits.replaced_keys_max + 1))
    empty = documents.Topic("t" * TOPIC.characters_max, INTEGER_MAX, "f" * 2 * KEY_ID_BYTES, member, [], [member])
    heard = msgspec.structs.replace(empty, subscribers=[documents.Subscriber(member, False)] * limits.subscriptions_max)
    members = [replacing] + [plain] * (limits.members_max - 1)
    found = documents.Mesh(member, name, members, [heard] + [empty] * (limits.topics_max - 1))
    msgspec.convert(msgspec.to_builtins(found), documents.Mesh)  # as long as they may be, and no longer
    return found
