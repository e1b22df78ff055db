"""Requests and replies as handlers see them, and the table of routes, which also describes them for OpenAPI."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.wire.problem import Problem, http_problem

JSON = "application/json"
QUERY_FIELDS_MAX = 16


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A whole request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    urls: frozenset[str]  # all spellings of the address that this request came to
    local: bool
    parameters: Mapping[str, str] = {}  # of the path


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON  # empty if there is no content
    headers: Mapping[str, str] = {}
    code: str = ""  # the refusal's, if it is one; for the metrics


class Streamed(Protocol):
    """An answer that is sent in pieces."""

    @property
    def chunks(self) -> AsyncIterator[bytes]: ...

    def headers(self) -> dict[str, str]: ...


Stream = AbstractAsyncContextManager[Streamed]
Handler = Callable[[Request], Awaitable[Reply | Stream]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A method and a path, their handler, and their description."""

    method: str
    path: str
    handler: Handler
    summary: str
    auth: str = "none"  # what a caller must prove; each program has its own list
    query: Mapping[str, str] = {}  # parameter -> its meaning
    headers: Mapping[str, str] = {}  # header that it reads -> its meaning
    body: Any = None  # the type of the request's document
    is_endless: bool = False  # it streams until the client leaves
    # By status: the types of JSON documents, or the content type of another body; "" for none.
    answers: Mapping[int, str | tuple[Any, ...]]


class NotAllowed(Exception):
    """The path exists, but not with this method."""

    def __init__(self, allowed: Sequence[str]) -> None:
        super().__init__(", ".join(allowed))

    def problem(self) -> Problem:
        detail = f"this path takes {self}"
        return http_problem(HTTPStatus.METHOD_NOT_ALLOWED, detail, headers={"allow": str(self)})


def _pattern(path: str) -> re.Pattern[str]:
    """The pattern for a path in which `{name}` stands for any one segment."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)) + r"\Z")


class RouteTable:
    """Finds routes; the first that matches counts."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = routes
        self._compiled = [(_pattern(route.path), route) for route in routes]

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and the parameters in the path; raises Refused for an unknown path and NotAllowed for a wrong method."""
        allowed = []
        for pattern, route in self._compiled:
            if match := pattern.match(path):
                if method == route.method or (method == "HEAD" and route.method == "GET"):
                    return route, match.groupdict()
                allowed.append(route.method)
        if allowed:
            raise NotAllowed(allowed)
        raise Refused(Refusal.NOT_FOUND, "there is nothing at this path")


def json_reply(document: object, status: int = 200) -> Reply:
    return Reply(status=status, body=msgspec.json.encode(document))


def problem_reply(problem: Problem) -> Reply:
    headers = dict(problem.headers)
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer" if "token" in str(problem.document["code"]) else "Nostr"
    return Reply(
        status=problem.status,
        body=problem.body,
        content_type="application/problem+json",
        headers=headers,
        code=str(problem.document["code"]),
    )


def read_query(raw: bytes) -> dict[str, str]:
    """The parameters of a query string. A token among them is refused whatever it is: URLs end up in logs."""
    if not raw:
        return {}
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=QUERY_FIELDS_MAX,
        )
    except ValueError as error:
        if b"token" in raw.lower():
            raise Refused(Refusal.TOKEN_IN_QUERY, "the URL has a token") from error
        raise Refused(Refusal.MALFORMED, "the query string is not one") from error
    if any(name.lower() == "token" for name, _ in pairs):
        raise Refused(Refusal.TOKEN_IN_QUERY, "the URL has a token")
    if len(dict(pairs)) != len(pairs):
        raise Refused(Refusal.MALFORMED, "a parameter of the query string stands twice")
    return dict(pairs)
