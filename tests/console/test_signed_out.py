"""Nobody gets in otherwise: whoever is signed out is told so, and nothing else, at every address of both consoles."""

import asyncio
import http.client
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.wire.route import Request
from tests.cli.person import Person
from tests.console.routes import daemon_console, daemon_routes, relay_routes
from tests.console.town import Town, Visitor, link

SAID = b"Nobody is signed in here."
UNMARKED = ("<", "Kitchen", "ann")  # nothing of a page, and nobody's name


@pytest.fixture(scope="module")
def relay_paths(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    return relay_routes(tmp_path_factory.mktemp("routes") / "relay")


@pytest.fixture(scope="module")
def daemon_paths(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    return daemon_routes(tmp_path_factory.mktemp("routes") / "home")


def refuses(visitor: Visitor, paths: list[tuple[str, str]]) -> None:
    extra = [
        ("GET", "/nothing"),
        ("PUT", "/"),
        ("DELETE", "/messages"),
        ("GET", ""),
        ("HEAD", "/"),
        ("GET", "/static/x/../x"),
    ]
    for method, path in [*paths, *extra]:
        body = b"csrf=&id=x" if method == "POST" else b""
        answer = visitor.ask(method, path, body)
        assert answer.status == 401, (method, path, answer.status)
        said = answer.body.decode()
        assert not any(word in said for word in UNMARKED), (method, path, said)
        assert len(said) < 400
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert "set-cookie" not in answer.headers


def test_there_are_routes_to_refuse(relay_paths: list[tuple[str, str]], daemon_paths: list[tuple[str, str]]) -> None:
    assert ("POST", "/messages/x/moderation") in relay_paths
    assert ("POST", "/outbox/x/requeue") in daemon_paths
    assert min(len(relay_paths), len(daemon_paths)) > 15


@pytest.mark.parametrize("cookie", ["", "holdfast_console_000000000000=x"])
def test_every_route_of_the_relay_refuses_whoever_is_signed_out(
    seeded: Town, relay_paths: list[tuple[str, str]], cookie: str
) -> None:
    refuses(Visitor(seeded.relay_url, cookie), relay_paths)


@pytest.mark.parametrize("cookie", ["", "holdfast_console_000000000000=x"])
def test_every_route_of_the_daemon_refuses_whoever_is_signed_out(
    owner: Visitor, daemon_paths: list[tuple[str, str]], cookie: str
) -> None:
    refuses(Visitor(owner.url, cookie), daemon_paths)


def test_a_session_of_one_console_is_none_of_the_other(operator: Visitor, owner: Visitor) -> None:
    assert Visitor(operator.url, owner.cookie).ask("GET", "/").status == 401
    assert Visitor(owner.url, operator.cookie).ask("GET", "/").status == 401


def test_a_link_opens_once(seeded: Town) -> None:
    opened = link("--data", seeded.relay.data)
    path = urlsplit(opened).path.removeprefix("/console")
    visitor = Visitor(seeded.relay_url)
    looked_at = visitor.ask("HEAD", path)  # as programs do that only want to know what a link leads to
    assert (looked_at.status, "set-cookie" in looked_at.headers) == (405, False)
    first, second = visitor.ask("GET", path), visitor.ask("GET", path)
    assert (first.status, second.status) == (200, 401)
    cookie = first.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Path=/console"))
    assert first.headers["referrer-policy"] == "same-origin"


def test_somebody_who_left_is_out(seeded: Town) -> None:
    visitor = Visitor(seeded.relay_url).enter(link("--data", seeded.relay.data))
    answer = visitor.ask("POST", "/leave", f"csrf={visitor.csrf()}".encode())
    assert answer.status == 200
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert visitor.ask("GET", "/").status == 401


def test_a_name_that_points_at_this_machine_is_refused(operator: Visitor, owner: Visitor) -> None:
    for visitor in (operator, owner):
        parts = urlsplit(visitor.url)
        connection = http.client.HTTPConnection(str(parts.hostname), int(parts.port or 0), timeout=30)
        connection.request("GET", "/console/", headers={"host": f"evil.example:{parts.port}", "cookie": visitor.cookie})
        answer = connection.getresponse()
        assert answer.status == 403
        connection.close()


def test_a_link_takes_a_signature_of_an_operator_for_this_very_request(seeded: Town) -> None:
    relay, path = seeded.relay, "/console/sign-in"
    stranger = relay.person("stranger").secret
    operator = relay.operator()
    json_only = {"accept": "application/json"}
    assert str(relay.ask("POST", path, b"{}", json_only)) == "401 auth_required"
    signed = relay.authorization(stranger, "POST", path, b"{}")
    assert str(relay.ask("POST", path, b"{}", {**json_only, "authorization": signed})) == "401 auth_failed"
    other = relay.authorization(operator, "POST", "/console/other", b"{}")
    assert str(relay.ask("POST", path, b"{}", {**json_only, "authorization": other})) == "401 auth_failed"
    right = relay.authorization(operator, "POST", path, b'{"role":"reader"}')
    answer = relay.ask("POST", path, b'{"role":"reader"}', {**json_only, "authorization": right})
    assert answer.document["role"] == "reader"
    assert (
        str(relay.ask("POST", path, b'{"role":"reader"}', {**json_only, "authorization": right})) == "401 auth_failed"
    )
    for wrong in (b'{"role":"king"}', b'{"role":"\xff"}', b"[" * 10_000):
        assert relay.signed(operator, "POST", path, wrong).status == 400


def test_the_command_says_what_is_missing_and_otherwise_where_to_go(seeded: Town, tmp_path: Path) -> None:
    nobody = Person(tmp_path / "home")
    assert "--relay goes with --key" in nobody.fails(2, "console", "--relay", "http://127.0.0.1:9")
    nobody.fails(5, "console", "--data", str(tmp_path))
    said = seeded.ann.says("console", "--no-browser")
    assert said.startswith("Open this within two minutes; it works once:\nhttp://127.0.0.1:")
    key = seeded.relay.data / "operator.key"
    assert link("--relay", seeded.relay_url, "--key", key).startswith(f"{seeded.relay_url}/console/enter/")


def test_the_daemon_gives_a_link_on_its_socket_only(tmp_path: Path) -> None:
    with daemon_console(tmp_path / "home") as (_, handlers):
        route, _ = handlers.routes.find("POST", "/v1/console")
        asked = Request(
            method="POST", path="/v1/console", query={}, headers={}, body=b"{}", urls=frozenset(), local=False
        )
        with pytest.raises(Refused) as caught:
            asyncio.run(route.handler(asked))  # type: ignore[arg-type]  # handlers are coroutines
        assert caught.value.refusal is Refusal.SOCKET_ONLY
