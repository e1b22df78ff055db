"""Everybody comes to every door of a relay, through real sockets, and each is told what the matrix says."""

import json
import time
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from holdfast.export.exporter import Exporter
from holdfast.protocol.action import Action, CreateMesh
from holdfast.protocol.administration import vouched
from holdfast.protocol.event import encode
from holdfast.relay import reading, session
from holdfast.relay.database import open_relay
from holdfast.relay.identity import Identity
from holdfast.relay.publishing import MESSAGES
from holdfast.relay.relay import Relay
from holdfast.relay.server import FORWARDING, Application
from holdfast.relay.settings import Settings
from holdfast.store.sqlite import MEMORY
from tests.abuse import relay_matrix as matrix
from tests.abuse.relay_matrix import ACTIONS, EVENTS, NOT_SERVED, READERS, ROUTES, SIGNERS, VERBS
from tests.abuse.scene import Caller, Scene
from tests.console.routes import bytes_of
from tests.people import Person
from tests.relay.queue_client import connected

FAR = {"forwarded": "for=192.0.2.1"}  # whoever has this does not come from this machine


def test_the_matrix_has_every_route(tmp_path: Path) -> None:
    engine = open_relay(MEMORY)
    try:
        relay = Relay(engine, Settings(), Identity.load(tmp_path, bytes_of), inline=True)
        app = Application(relay, Exporter(MEMORY, "none"))
        there = {(route.method, route.path) for route in app._routes.routes}
    finally:
        engine.close()
    assert there == {*ROUTES, ("POST", MESSAGES)}


def test_the_matrix_has_every_verb() -> None:
    read = msgspec.inspect.type_info(reading._decoder.type)
    assert isinstance(read, msgspec.inspect.UnionType)
    there = {kind.tag for kind in read.types if isinstance(kind, msgspec.inspect.StructType)}
    assert there | {"EVENT"} | session.LATER_VERBS == set(VERBS)


def test_the_matrix_has_every_action() -> None:
    assert set(ACTIONS) == set(get_args(Action))


@pytest.mark.parametrize(("method", "route"), ROUTES, ids=map(" ".join, ROUTES))
def test_a_route_serves_those_whom_it_is_for(place: Scene, method: str, route: str) -> None:
    row = ROUTES[method, route]
    expected = {caller: NOT_SERVED[row.kind].get(caller, row.yes) for caller in Caller}
    told = {caller: str(place.ask_relay(caller, method, row.path, row.body)) for caller in Caller}
    assert told == expected


@pytest.mark.parametrize("what", EVENTS)
def test_an_event_is_taken_from_those_who_may_publish_it(place: Scene, what: str) -> None:
    yes, no = EVENTS[what]
    expected = {caller: no.get(caller, yes) for caller in SIGNERS}
    told = {caller: str(place.relay.publish(matrix.published(place, caller, what), **FAR)) for caller in SIGNERS}
    assert told == expected


def test_an_event_without_a_signature_is_nobodys(place: Scene) -> None:
    unsigned = json.loads(encode(place.member.message(place.admin)))
    del unsigned["sig"]
    for caller in (Caller.NOBODY, Caller.CONSUMER, Caller.OPERATOR):
        answer = place.ask_relay(caller, "POST", MESSAGES, json.dumps(unsigned).encode())
        assert str(answer) == "400 malformed", caller


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__struct_config__.tag)
def test_an_action_is_carried_out_for_those_who_may_ask_for_it(place: Scene, action: type) -> None:
    asked = ACTIONS[action]
    expected = {caller: asked.no.get(caller, asked.yes) for caller in SIGNERS}
    told = {caller: str(place.relay.publish(matrix.administered(place, caller, asked), **FAR)) for caller in SIGNERS}
    assert told == expected


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_serves_those_whom_it_is_for(place: Scene, name: str) -> None:
    verb = VERBS[name]
    told = {}
    for caller in READERS:
        with place.websocket(caller) as client:
            client.say(*verb.frame(place))
            told[caller] = matrix.told(client.hear())
    assert told == {caller: verb.no.get(caller, verb.yes) for caller in READERS}


@pytest.mark.parametrize("name", ["CHANGES", "REQ"])
def test_the_documents_of_an_author_are_for_whoever_has_its_key(place: Scene, name: str) -> None:
    with connected(place.relay) as client:
        assert client.authenticate(place.author.secret)[2] is True
        client.say(*VERBS[name].frame(place))
        assert matrix.told(client.hear()) == VERBS[name].yes


def test_nobody_acknowledges_for_somebody_else(place: Scene) -> None:
    """Whoever can open no queue has nothing to acknowledge, and whoever can closes rows of the own one only."""
    with place.websocket(Caller.MEMBER) as client:
        client.open()
        waiting = [message.seq for message in client.until_live()]
    assert waiting
    for caller in READERS:
        with place.websocket(caller) as client:
            if caller is Caller.ADMIN:
                client.open()
                client.until_live()
            if caller is not Caller.MEMBER:
                client.say("QUEUE", client.sub, "ACK", waiting)
                frames = [client.hear()] if caller is not Caller.ADMIN else [client.hear(), client.hear()]
                expected = "QUEUE ERR ack_unknown" if caller is Caller.ADMIN else "QUEUE ERR malformed"
                assert matrix.told(frames[-1]) == expected, caller
                assert all(frame[2:] == ["ACKED", []] for frame in frames[:-1])
    with place.websocket(Caller.MEMBER) as client:
        client.open()
        assert [message.seq for message in client.until_live()] == waiting


def test_a_stranger_founds_a_mesh_on_the_relays_own_machine_and_nowhere_else(place: Scene) -> None:
    stranger = Person("founder", now_s=int(time.time()), mesh="03MESH")
    headers: list[dict[str, str]] = [*({name: "x"} for name in sorted(FORWARDING)), {"origin": "http://localhost"}]
    for shown in headers:
        assert str(place.relay.publish(stranger.found_mesh(), **shown)) == "403 not_permitted", shown
    assert str(place.relay.publish(stranger.found_mesh())) == "201"


def test_a_stranger_founds_a_mesh_from_afar_on_the_word_of_an_operator_and_of_nobody_else(place: Scene) -> None:
    stranger = Person("far-founder", now_s=int(time.time()), mesh="04MESH")
    asked = CreateMesh(name="x", member=stranger.member, member_name="x", key=stranger.key)
    told = {}
    for caller in SIGNERS:
        founding = stranger.administer(vouched(place.person(caller).secret, stranger.mesh, asked, bytes(32)))
        told[caller] = str(place.relay.publish(founding, **FAR))
    assert told == dict.fromkeys(SIGNERS, "403 not_permitted") | {Caller.OPERATOR: "201"}
