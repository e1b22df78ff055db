"""The OpenAPI description of an HTTP interface, made from the same routes that answer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.wire.problem import PROBLEM_JSON
from holdfast.wire.route import JSON, Route

_REFERENCE = "#/components/schemas/{name}"


class RefusalDocument(msgspec.Struct, kw_only=True):
    """A refusal (RFC 9457); further members depend on the code."""

    type: str
    title: str
    status: int
    code: str
    temporary: bool
    detail: str = ""


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """How callers authenticate: the schemes, and which of them a route's `auth` accepts."""

    schemes: Mapping[str, Mapping[str, str]]
    accepted: Mapping[Any, Sequence[str]]  # a route's `auth` -> schemes, any one of which is enough; empty for none


def openapi(
    routes: Sequence[Route], *, title: str, version: str, description: str, url: str, security: Security
) -> dict[str, Any]:
    """The OpenAPI description of these routes."""
    types = list(dict.fromkeys([RefusalDocument, *(shape for route in routes for shape in _documents(route))]))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of, security)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": description},
        "servers": [{"url": url}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": security.schemes},
    }


def _operation(route: Route, schema_of: Mapping[Any, Any], security: Security) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "security": [{scheme: []} for scheme in security.accepted[route.auth]],
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)],
        "responses": {
            **{
                str(status): {"description": route.summary, **_content(answer, schema_of)}
                for status, answer in route.answers.items()
            },
            "default": {"description": "A refusal.", "content": {PROBLEM_JSON: {"schema": schema_of[RefusalDocument]}}},
        },
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, **_content((route.body,), schema_of)}
    return operation


def _content(answer: str | tuple[Any, ...], schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"content": {answer: {}}} if answer else {}
    schemas = [schema_of[shape] for shape in answer]
    return {"content": {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}}


def _path_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for part in route.path.split("/"):
        if part.startswith("{"):
            yield {"name": part.strip("{}"), "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for name, says in route.query.items():
        yield {"name": name, "in": "query", "description": says, "schema": {"type": "string"}}


def _header_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for name, says in route.headers.items():
        yield {"name": name, "in": "header", "description": says, "schema": {"type": "string"}}


def _documents(route: Route) -> Iterable[Any]:
    if route.body is not None:
        yield route.body
    for answer in route.answers.values():
        if not isinstance(answer, str):
            yield from answer
