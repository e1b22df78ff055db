"""What the relay says of itself: the NIP-11 document with its true limits, and the description of its HTTP interface."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from holdfast.protocol.envelope import SEALED_CHARACTERS_MAX
from holdfast.protocol.event import EVENT_BYTES_MAX, TAGS_MAX
from holdfast.protocol.schedule import CLOCK_AHEAD_MAX, DAY, SECOND, DedupeMode
from holdfast.relay.documents import Dedupe, Features, Information, Limitation, Queue, RefusalDocument
from holdfast.relay.route import JSON, Auth, Route
from holdfast.relay.settings import Settings
from holdfast.wire.problem import PROBLEM_JSON

NOSTR_JSON = "application/nostr+json"
SOFTWARE = "holdfast"
VERSION = version(SOFTWARE)
DESCRIPTION = "Keeps messages until their recipients have them, and can prove it. It sees envelopes, never bodies."
SUPPORTED_NIPS = [1, 11, 98]

_REFERENCE = "#/components/schemas/{name}"


def information(settings: Settings, pubkey: str, log_id: bytes) -> Information:
    """The NIP-11 document."""
    return Information(
        name=settings.name,
        description=DESCRIPTION,
        pubkey=pubkey,
        supported_nips=SUPPORTED_NIPS,
        software=SOFTWARE,
        version=VERSION,
        limitation=_limitation(settings),
        log_id=log_id.hex(),
        features=_features(settings),
    )


def _limitation(settings: Settings) -> Limitation:
    limits, days = settings.limits, _dedupe_days(settings)
    return Limitation(
        max_message_length=limits.frame_bytes_max,
        max_event_tags=TAGS_MAX,
        max_content_length=SEALED_CHARACTERS_MAX,
        auth_required=False,
        payment_required=False,
        restricted_writes=True,  # members only
        created_at_lower_limit=None if days is None else days * DAY // SECOND,
        created_at_upper_limit=CLOCK_AHEAD_MAX // SECOND,
        max_event_length=EVENT_BYTES_MAX,
        max_events_per_request=limits.events_per_request_max,
        max_request_length=limits.request_bytes_max,
        max_connections=limits.connections_max,
        messages_per_s=limits.messages_per_s,
        messages_burst=limits.messages_burst,
        request_timeout_s=limits.request_timeout_s,
        idle_timeout_s=limits.idle_timeout_s,
    )


def _features(settings: Settings) -> Features:
    return Features(
        dedupe=Dedupe(mode=settings.retention.dedupe_mode.value, days=_dedupe_days(settings)),
        queue=Queue(
            ttl_days=settings.retention.queue_ttl_days,
            messages_max=settings.limits.queue_messages_max,
        ),
    )


def _dedupe_days(settings: Settings) -> int | None:
    retention = settings.retention
    return None if retention.dedupe_mode is DedupeMode.PERMANENT else retention.dedupe_retention_days


def openapi(routes: Sequence[Route], url: str) -> dict[str, Any]:
    """The OpenAPI description of these routes."""
    types = list(dict.fromkeys([RefusalDocument, *(shape for route in routes for shape in _documents(route))]))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast relay", "version": VERSION, "description": DESCRIPTION},
        "servers": [{"url": url}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY_SCHEMES},
    }


_SECURITY_SCHEMES = {
    "nostr": {"type": "http", "scheme": "Nostr", "description": "NIP-98: a signed event of kind 27235, in base64."},
    "token": {"type": "http", "scheme": "bearer", "description": "An export token: `holdfast relay token`."},
}
_SECURITY: dict[Auth, list[dict[str, list[str]]]] = {
    Auth.NONE: [],
    Auth.SIGNED_EVENTS: [],
    Auth.MEMBER: [{"nostr": []}],
    Auth.TOKEN: [{"token": []}],
    Auth.CONSUMER: [{"nostr": []}, {"token": []}],
}


def _operation(route: Route, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "security": _SECURITY[route.auth],
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": {
            **{
                str(status): {"description": route.summary, "content": _content(answer, schema_of)}
                for status, answer in route.answers.items()
            },
            "default": {"description": "A refusal.", "content": {PROBLEM_JSON: {"schema": schema_of[RefusalDocument]}}},
        },
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content((route.body,), schema_of)}
    return operation


def _content(answer: str | tuple[Any, ...], schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    if isinstance(answer, str):
        return {answer: {}}
    schemas = [schema_of[shape] for shape in answer]
    return {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}


def _path_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for part in route.path.split("/"):
        if part.startswith("{"):
            yield {"name": part.strip("{}"), "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for name, says in route.query.items():
        yield {"name": name, "in": "query", "description": says, "schema": {"type": "string"}}


def _documents(route: Route) -> Iterable[Any]:
    if route.body is not None:
        yield route.body
    for answer in route.answers.values():
        if not isinstance(answer, str):
            yield from answer
