"""The document of a mesh: told once, and again only when something has changed."""

import asyncio
import http.client
from collections.abc import Mapping
from typing import Any, get_args

import pytest

from holdfast.protocol.action import (
    Action,
    AddMember,
    DismissAuthor,
    RegisterConsumer,
    RemoveConsumer,
    RenameMember,
    Role,
    SetRole,
    Unsubscribe,
    WithdrawInvite,
)
from holdfast.protocol.administration import admit_author, from_event
from holdfast.protocol.event import Event
from holdfast.protocol.refusal import Refusal
from holdfast.relay import views
from holdfast.store import history
from holdfast.store.engine import Row, Transaction, Value
from holdfast.store.statements import Statement
from tests.people import MESH, Person, public_key, secret_of
from tests.relay.place import SECRET, Place
from tests.relay.running import Answered, RunningRelay

PATH = f"/v1/meshes/{MESH}"
NEWEST = b"n" * 32


def _sight(place: Place) -> views.Sight:
    return asyncio.run(place.relay.mesh(MESH, place.operator.key))


def _administrations(place: Place) -> list[Event]:
    """Every kind of administration, each of which can be carried out after those before it."""
    alice, bob, carol, dave = place.alice, place.bob, place.carol, Person("dave")
    return [
        alice.invite(SECRET),
        bob.join(SECRET),
        alice.invite(b"w" * 32),
        alice.administer(WithdrawInvite(key=public_key(b"w" * 32))),
        alice.administer(AddMember(member=carol.member, name="carol", key=carol.key, role=Role.MEMBER)),
        alice.administer(AddMember(member=dave.member, name="dave", key=dave.key, role=Role.MEMBER)),
        bob.administer(RenameMember(member=bob.member, name="robert")),
        alice.administer(SetRole(member=bob.member, role=Role.ADMIN)),
        alice.create_topic("news"),
        carol.subscribe("news"),
        bob.subscribe("news"),
        bob.administer(Unsubscribe(topic="news")),
        alice.grant("news", 1, [alice, carol]),
        alice.advance("news", 0),
        bob.block(carol),
        bob.unblock(carol),
        bob.administer(admit_author(secret_of("an author"), MESH, bob.member, bytes(32))),
        bob.administer(DismissAuthor(author=public_key(secret_of("an author")))),
        alice.revoke(dave),
        bob.rotate(NEWEST),
    ]


def test_every_kind_of_administration_changes_the_tag(place: Place) -> None:
    founding = place.alice.found_mesh()
    place.expect(201, founding, local=True)
    sights = [_sight(place)]
    events = [founding, *_administrations(place)]
    asked = {type(from_event(event).action) for event in events}
    assert asked == set(get_args(Action)) - {RegisterConsumer, RemoveConsumer}, "these two are of no mesh"
    for event in events[1:]:
        place.expect(201, event)
        sights.append(_sight(place))
        assert sights[-1] == _sight(place), "nothing has happened in between"
    assert len({sight.tag for sight in sights}) == len(sights)


def test_what_is_refused_or_repeated_or_no_administration_leaves_the_tag(place: Place) -> None:
    place.settle()
    before = _sight(place)
    renaming = place.bob.administer(RenameMember(member=place.bob.member, name="robert"))
    place.refused(Refusal.NOT_PERMITTED, place.bob.revoke(place.carol))
    place.expect(201, place.bob.message(place.carol))
    assert _sight(place) == before
    place.expect(201, renaming)
    after = _sight(place)
    place.expect(200, renaming)
    assert _sight(place) == after != before


def test_a_relay_that_was_restored_has_other_tags(place: Place) -> None:
    """What it lost may have been told under a revision that it will come to again."""
    place.settle()
    before = _sight(place)
    with place.engine.write() as transaction:
        history.fork(transaction, place.now, b"f" * 16)
    after = _sight(place)
    assert after.tag != before.tag
    assert after.document == before.document


class Noting:
    """A transaction that remembers which statements it was asked for."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def rows(self, statement: Statement, parameters: Mapping[str, Value] | None = None) -> list[Row]:
        self.asked.append(statement.name)
        return self._transaction.rows(statement, parameters or {})


def test_whoever_knows_the_document_costs_the_relay_no_more_than_finding_that_out(place: Place) -> None:
    """Who asks, which mesh, which log: one row each, however many members there are."""
    place.settle()
    tag = _sight(place).tag
    with place.engine.read() as transaction:
        noting = Noting(transaction)
        known = views.mesh(noting, MESH, place.bob.key, is_operator=False, knows=lambda found: found == tag)  # type: ignore[arg-type]
        assert known == views.Sight(tag, None)
        assert sorted(noting.asked) == ["head", "mesh", "reader"]


@pytest.fixture(scope="module")
def mesh(shared_relay: RunningRelay) -> RunningRelay:
    shared_relay.found_mesh("alice", "bob")
    return shared_relay


def _get(relay: RunningRelay, who: str, method: str = "GET", **headers: str) -> Answered:
    authorization = relay.authorization(relay.person(who).secret, method, PATH)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return relay.ask(method, PATH, b"", {"authorization": authorization, **named})


def _tag(relay: RunningRelay) -> str:
    return _get(relay, "bob").headers["etag"]


def test_a_document_comes_with_its_strong_tag(mesh: RunningRelay) -> None:
    first, second = _get(mesh, "bob"), _get(mesh, "alice")
    assert first.status == second.status == 200
    assert first.headers["etag"] == second.headers["etag"]
    assert first.headers["etag"].startswith('"')
    assert first.body == second.body
    assert first.headers["cache-control"] == "private, no-cache"


@pytest.mark.parametrize("known", ["{}", "W/{}", '"other", {}', '{} , "other"', '"", ,{}', "*"])
def test_whoever_has_it_is_told_only_that(mesh: RunningRelay, known: str) -> None:
    tag = _tag(mesh)
    answered = _get(mesh, "bob", if_none_match=known.format(tag))
    assert (answered.status, answered.body) == (304, b"")
    assert answered.headers["etag"] == tag
    assert answered.headers["cache-control"] == "private, no-cache"
    assert not {"content-type", "content-length", "transfer-encoding"} & answered.headers.keys()
    assert _get(mesh, "bob", "HEAD", if_none_match=known.format(tag)).status == 304


@pytest.mark.parametrize("known", ["", '""', '"other"', "{bare}", "W/{bare}", '"{bare}x"', "**"])
def test_whoever_has_something_else_is_told_all_of_it(mesh: RunningRelay, known: str) -> None:
    bare = _tag(mesh).strip('"')
    answered = _get(mesh, "bob", if_none_match=known.format(bare=bare))
    assert answered.status == 200
    assert answered.document["mesh"] == MESH


def test_a_stranger_who_guesses_the_tag_learns_nothing(mesh: RunningRelay) -> None:
    assert str(_get(mesh, "mallory", if_none_match=_tag(mesh))) == "403 not_a_member"
    assert str(_get(mesh, "mallory", if_none_match="*")) == "403 not_a_member"


def test_the_connection_goes_on_after_an_answer_without_content(mesh: RunningRelay) -> None:
    tag = _tag(mesh)
    connection = http.client.HTTPConnection(*mesh.address, timeout=30)
    for known, status in ((tag, 304), ("", 200), (tag, 304)):
        authorization = mesh.authorization(mesh.person("bob").secret, "GET", PATH)
        connection.request("GET", PATH, headers={"authorization": authorization, "if-none-match": known})
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (status, status == 200)
    connection.close()


def test_the_description_says_so(mesh: RunningRelay) -> None:
    described = mesh.ask("GET", "/openapi.json").document["paths"]["/v1/meshes/{mesh}"]["get"]
    assert [found["name"] for found in described["parameters"] if found["in"] == "header"] == ["If-None-Match"]
    assert "content" not in described["responses"]["304"]
