"""Everybody comes to every door of a daemon and of both consoles, through real sockets, and is told what the matrix says."""

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.abuse import daemon_matrix as matrix
from tests.abuse.daemon_matrix import DAEMON_PAGES, NOT_SERVED, RELAY_PAGES, ROUTES, VISITS, Door, Shown, Visitor
from tests.abuse.scene import Caller, Scene, answered
from tests.console.routes import daemon_console, relay_console
from tests.relay.running import Answered


def test_the_matrix_has_every_route(tmp_path: Path) -> None:
    with daemon_console(tmp_path / "home") as (console, handlers):
        assert {(route.method, route.path) for route in handlers.routes.routes} == set(ROUTES)
        assert {(route.method, route.path) for route in console.routes.routes} == set(DAEMON_PAGES)
    with relay_console(tmp_path / "relay") as console:
        assert {(route.method, route.path) for route in console.routes.routes} == set(RELAY_PAGES)


def asked(place: Scene, door: Door, method: str, path: str, body: bytes = b"") -> Answered:
    """What somebody who comes by this door is answered."""
    bearer = {"authorization": f"Bearer {place.token}"}
    page = {"origin": "https://example.org"}
    in_url = f"{path}{'&' if '?' in path else '?'}token={place.token}"
    shown: Mapping[Door, tuple[str, str, dict[str, str]]] = {
        Door.OWNER: (place.socket, path, {}),
        Door.PAGE: (place.socket, path, page),
        Door.FAR: (place.socket, path, {"host": "example.org"}),
        Door.PORT: (place.port, path, {}),
        Door.WRONG: (place.port, path, {"authorization": "Bearer " + "A" * 43}),
        Door.URL: (place.port, in_url, bearer),
        Door.TOKEN: (place.port, path, bearer),
        Door.TOKEN_PAGE: (place.port, path, bearer | page),
    }
    where, written, headers = shown[door]
    return answered(where, method, written, body, headers)


@pytest.mark.parametrize(("method", "route"), ROUTES, ids=map(" ".join, ROUTES))
def test_a_route_is_open_to_its_owner_and_to_the_token(place: Scene, method: str, route: str) -> None:
    row = ROUTES[method, route]
    with_token = "403 socket_only" if row.socket_only else row.yes
    expected = {Door.OWNER: row.yes, Door.TOKEN: with_token, **NOT_SERVED}
    assert {door: str(asked(place, door, method, row.path, row.raw)) for door in Door} == expected


def test_an_address_at_which_nothing_is_tells_strangers_nothing(place: Scene) -> None:
    told = {door: str(asked(place, door, "GET", "/v1/nothing")) for door in Door}
    assert told == {Door.OWNER: matrix.MISSING, Door.TOKEN: matrix.MISSING, **NOT_SERVED}


@pytest.mark.parametrize("since", ["9" * 5_000, "9" * 30, "9" * 19])
def test_a_time_that_no_clock_reaches_is_refused(place: Scene, since: str) -> None:
    """Of so many digits the interpreter makes no number, and of fewer no database a row."""
    assert str(asked(place, Door.OWNER, "GET", f"/v1/inbox?since={since}")) == "400 malformed"


def test_bodies_leave_over_the_socket_only(place: Scene) -> None:
    assert asked(place, Door.OWNER, "GET", matrix.PAYLOADS).status == 200
    assert str(asked(place, Door.TOKEN, "GET", matrix.PAYLOADS)) == "403 socket_only"


class Consoles:
    """Ways into the consoles of a scene, each with a session of its own."""

    def __init__(self, place: Scene) -> None:
        self._place = place

    def enter(self, of: str, role: str) -> tuple[str, str]:
        """The address of a console, and the cookie of somebody who has just signed in."""
        url, path = self._link(of, role)
        opened = answered(url, "GET", path)
        return url, opened.headers["set-cookie"].partition(";")[0]

    def _link(self, of: str, role: str) -> tuple[str, str]:
        body = json.dumps({"role": role}).encode()
        if of == "relay":
            told = self._place.ask_relay(Caller.OPERATOR, "POST", "/console/sign-in", body)
            return self._place.relay.url, told.document["path"]
        given = urlsplit(answered(self._place.socket, "POST", "/v1/console", body).document["url"])
        return f"http://{given.netloc}", given.path

    def visit(self, of: str, visitor: Visitor, method: str, path: str) -> str:
        """What somebody is answered there."""
        role = "reader" if visitor is Visitor.READER else "operator"
        url, cookie = self.enter(of, role)
        csrf = answered(url, "GET", "/console/", headers={"cookie": cookie}).body.decode()
        csrf = csrf.partition('name="csrf" value="')[2].partition('"')[0]
        assert csrf
        headers = {"accept": "application/json", "cookie": cookie}
        if visitor is Visitor.NOBODY:
            del headers["cookie"]
        elif visitor is Visitor.FOREIGN:
            _, headers["cookie"] = self.enter("daemon" if of == "relay" else "relay", role)
        elif visitor is Visitor.FORGETFUL:
            csrf = ""
        elif visitor is Visitor.LURED:
            headers["origin"] = "https://example.org"
        body = f"csrf={csrf}&name=x&body=x&reason=x".encode() if method == "POST" else b""
        return str(answered(url, method, f"/console{path}", body, headers))


def visits(place: Scene, of: str, method: str, shown: Shown) -> tuple[dict[Visitor, str], dict[Visitor, str]]:
    """What everybody is told, and what everybody should be."""
    consoles = Consoles(place)
    told = {visitor: consoles.visit(of, visitor, method, shown.path) for visitor in Visitor}
    return told, {visitor: VISITS[shown.page].get(visitor, shown.yes) for visitor in Visitor}


@pytest.mark.parametrize(("method", "route"), RELAY_PAGES, ids=map(" ".join, RELAY_PAGES))
def test_a_page_of_the_relay_is_shown_to_those_whom_it_is_for(place: Scene, method: str, route: str) -> None:
    told, expected = visits(place, "relay", method, RELAY_PAGES[method, route])
    assert told == expected


@pytest.mark.parametrize(("method", "route"), DAEMON_PAGES, ids=map(" ".join, DAEMON_PAGES))
def test_a_page_of_the_daemon_is_shown_to_those_whom_it_is_for(place: Scene, method: str, route: str) -> None:
    told, expected = visits(place, "daemon", method, DAEMON_PAGES[method, route])
    assert told == expected
