"""Both descriptions asked for all that they allow, and for what they do not: nothing fails, and nothing answers otherwise."""

import base64
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast.protocol.event import encode, sign_event
from tests.abuse import daemon_matrix, relay_matrix
from tests.abuse.scene import Caller, Scene, answered, scene
from tests.relay.running import ANSWER_S

CYCLES = int(os.environ.get("HOLDFAST_CRASH_CYCLES", "0"))
EXAMPLES = CYCLES or 2  # of each route, as it should be asked and as it should not
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
RELAY = [*relay_matrix.ROUTES, ("POST", "/v1/messages")]
DAEMON = list(daemon_matrix.ROUTES)

asking = settings(
    max_examples=EXAMPLES,
    derandomize=not CYCLES,  # the same every day, others each time at length
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def asked() -> Iterator[Scene]:
    """A place of its own: what a description allows is also done."""
    with scene() as found:
        yield found
        assert found.relay.metric("holdfast_bugs_total") == 0


@pytest.fixture(scope="module")
def relay_described(asked: Scene) -> Any:
    return schemathesis.openapi.from_dict(answered(asked.relay.url, "GET", "/openapi.json").document)


@pytest.fixture(scope="module")
def daemon_described(asked: Scene) -> Any:
    return schemathesis.openapi.from_dict(answered(asked.socket, "GET", "/openapi.json").document)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        opened.trust_env = False
        yield opened


def prepared(case: Any, url: str) -> requests.PreparedRequest:
    kwargs = case.as_transport_kwargs(base_url=url)
    taken = ("method", "url", "headers", "params", "data", "json", "cookies", "files", "auth")
    return requests.Request(**{name: kwargs[name] for name in taken if name in kwargs}).prepare()


def check(case: Any, session: requests.Session, request: requests.PreparedRequest) -> None:
    """Ask, and compare the answer with the description."""
    with session.send(request, timeout=ANSWER_S, stream=True, allow_redirects=False) as response:
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            return  # it has no end
        case.validate_response(response, checks=CHECKS)


def signed(secret: bytes, request: requests.PreparedRequest) -> str:
    body = request.body or b""
    raw = body.encode() if isinstance(body, str) else bytes(body)  # type: ignore[arg-type]  # nothing is streamed
    tags = [("u", str(request.url)), ("method", str(request.method)), ("nonce", os.urandom(8).hex())]
    if raw:
        tags.append(("payload", hashlib.sha256(raw).hexdigest()))
    event = sign_event(secret, int(time.time()), 27235, tags, "", os.urandom(32))
    return "Nostr " + base64.b64encode(encode(event)).decode()


def run(ask: Callable[[], None], operation: Any, mode: GenerationMode) -> None:
    """Ask, unless there is nothing about an operation that could be wrong."""
    parts = (operation.query, operation.headers, operation.body)  # a part of a path is any text
    if mode is GenerationMode.NEGATIVE and not any(part.items for part in parts):
        return
    try:
        ask()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "not"])
@pytest.mark.parametrize(("method", "path"), RELAY, ids=map(" ".join, RELAY))
def test_a_relay_answers_as_described(
    asked: Scene, relay_described: Any, session: requests.Session, method: str, path: str, mode: GenerationMode
) -> None:
    operation = relay_described[path][method]

    @asking
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        request = prepared(case, asked.relay.url)
        is_export = path.startswith("/v1/export")
        token = f"Bearer {asked.tokens[Caller.CONSUMER]}"
        request.headers["authorization"] = token if is_export else signed(asked.relay.operator(), request)
        check(case, session, request)

    run(ask, operation, mode)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "not"])
@pytest.mark.parametrize(("method", "path"), DAEMON, ids=map(" ".join, DAEMON))
def test_a_daemon_answers_as_described(
    asked: Scene, daemon_described: Any, session: requests.Session, method: str, path: str, mode: GenerationMode
) -> None:
    operation = daemon_described[path][method]

    @asking
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        request = prepared(case, asked.port)
        request.headers["authorization"] = f"Bearer {asked.token}"
        check(case, session, request)

    run(ask, operation, mode)


def test_every_route_is_described(relay_described: Any, daemon_described: Any) -> None:
    for described, routes in ((relay_described, RELAY), (daemon_described, DAEMON)):
        found = {(result.ok().method.upper(), result.ok().path) for result in described.get_all_operations()}
        assert found == set(routes)
