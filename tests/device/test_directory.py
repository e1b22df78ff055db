"""The directory: what a device knows of its mesh, and whom a person means."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.device import database, directory
from holdfast.device.directory import Directory, Known, KnownKey, KnownTopic
from holdfast.protocol import keys
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store.sqlite import MEMORY, SqliteEngine
from holdfast.wire.client import Member, MemberKey, Mesh, Topic
from tests.people import Person

ANN, BOB, CAT, OLD = (Person(name).key for name in ("ann", "bob", "cat", "bob long ago"))


def _member(member: str, name: str, pubkey: str | None, *had: str, status: str = "active") -> Member:
    own = [MemberKey(pubkey=pubkey, since=5)] if pubkey else []
    past = [MemberKey(pubkey=key, since=number, until=number + 1) for number, key in enumerate(had, 1)]
    return Member(member=member, pubkey=pubkey, name=name, role="member", status=status, keys=(*past, *own))


def _mesh(*members: Member, topics: tuple[str, ...] = ()) -> Mesh:
    shown = tuple(Topic(topic=name, key_epoch=3, created_by="01A", subscribers=(), left=()) for name in topics)
    return Mesh(mesh="01MESH", name="friends", members=members, topics=shown)


FRIENDS = _mesh(_member("01A", "ann", ANN), _member("01B", "bob", BOB, OLD), topics=("news",))


@pytest.fixture
def engine() -> Iterator[SqliteEngine]:
    engine = SqliteEngine(MEMORY)
    database.prepare(engine, lambda: 0, bytes)
    yield engine
    engine.close()


def _seen(engine: SqliteEngine, mesh: Mesh) -> Directory:
    with engine.write() as transaction:
        return directory.replace(transaction, mesh)


def _kept(engine: SqliteEngine) -> Directory:
    with engine.read() as transaction:
        return directory.load(transaction)


def test_what_the_relay_showed_is_there_after_a_restart(engine: SqliteEngine) -> None:
    seen = _seen(engine, FRIENDS)
    assert _kept(engine) == seen
    assert seen.members["01B"] == Known("01B", "bob", "member", "active", BOB)
    assert seen.keys[OLD] == KnownKey(OLD, "01B", 1, 2)
    assert seen.topics == {"news": KnownTopic("news", 3, "01A")}


def test_a_newer_mesh_takes_the_place_of_the_one_before(engine: SqliteEngine) -> None:
    _seen(engine, FRIENDS)
    later = _mesh(_member("01A", "anna", ANN), topics=("sport",))
    assert _seen(engine, later) == _kept(engine)
    assert set(_kept(engine).members) == {"01A"}
    assert set(_kept(engine).topics) == {"sport"}
    assert _kept(engine).member_of(BOB) is None


def test_the_same_mesh_again_writes_nothing(engine: SqliteEngine) -> None:
    _seen(engine, FRIENDS)
    with engine.write() as transaction:
        changed = "SELECT total_changes()"
        before = transaction.rows(changed)
        directory.replace(transaction, FRIENDS)
        assert transaction.rows(changed) == before


@pytest.mark.parametrize("to", ["bob", "01B", BOB, BOB.upper(), keys.npub(BOB), OLD, keys.npub(OLD)])
def test_a_member_is_meant_by_name_id_or_any_key_it_ever_had(engine: SqliteEngine, to: str) -> None:
    assert _seen(engine, FRIENDS).resolve(to) == ("dm", "01B")


def test_a_topic_is_meant_by_its_name_behind_a_mark(engine: SqliteEngine) -> None:
    assert _seen(engine, FRIENDS).resolve("@news") == ("topic", "news")


NOBODY: dict[str, tuple[Mesh, str, str]] = {
    "a name that nobody has": (FRIENDS, "cat", "no member is called 'cat'"),
    "a topic that there is not": (FRIENDS, "@sport", "there is no topic 'sport'"),
    "a topic without its mark": (FRIENDS, "news", "no member is called"),
    "a key of nobody": (FRIENDS, CAT, "no member is called"),
    "one who was revoked": (_mesh(_member("01B", "bob", None, OLD, status="revoked")), "bob", "was revoked"),
    "two of one name": (_mesh(_member("01A", "bob", ANN), _member("01B", "bob", BOB)), "bob", "2 members are called"),
    "anybody, before the mesh was seen": (_mesh(), "bob", "has not seen its mesh yet"),
    "any topic, before the mesh was seen": (_mesh(), "@news", "has not seen its mesh yet"),
}


@pytest.mark.parametrize("name", NOBODY)
def test_who_is_not_there_is_refused_with_the_reason(engine: SqliteEngine, name: str) -> None:
    mesh, to, reason = NOBODY[name]
    with pytest.raises(Refused, match=reason) as refused:
        _seen(engine, mesh).resolve(to)
    assert refused.value.refusal is Refusal.DESTINATION_UNKNOWN


def test_of_two_with_one_name_the_active_one_is_meant(engine: SqliteEngine) -> None:
    mesh = _mesh(_member("01A", "bob", None, OLD, status="revoked"), _member("01B", "bob", BOB))
    assert _seen(engine, mesh).resolve("bob") == ("dm", "01B")


def test_a_key_is_its_members_though_it_was_replaced(engine: SqliteEngine) -> None:
    seen = _seen(engine, FRIENDS)
    assert (seen.member_of(OLD), seen.member_of(BOB), seen.member_of(CAT)) == ("01B", "01B", None)


def test_one_seals_to_the_current_key_and_to_the_last_one_of_a_member_who_has_none(engine: SqliteEngine) -> None:
    seen = _seen(engine, FRIENDS)
    assert seen.sealing_key_of("01B") == BOB
    gone = _seen(engine, _mesh(_member("01B", "bob", None, OLD, BOB, status="revoked")))
    assert gone.sealing_key_of("01B") == BOB
    assert gone.sealing_key_of("01C") is None


def test_a_relay_that_lists_no_keys_still_shows_the_current_ones(engine: SqliteEngine) -> None:
    plain: dict[str, Any] = {"role": "member", "status": "active"}
    seen = _seen(engine, _mesh(Member(member="01A", pubkey=ANN, name="ann", **plain)))
    assert seen.member_of(ANN) == "01A"
