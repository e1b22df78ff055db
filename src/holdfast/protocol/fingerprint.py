"""The fingerprint of a request to send: two requests have the same one iff they ask for the same thing.

sha256 over seven fields, the first six each closed by one zero byte: envelope version, destination kind, destination as
the caller wrote it, id replied to, priority, meta in canonical JSON (RFC 8785), sha256 of the body in hex. No meta and
empty meta are the same. What a request can say beyond these fields joins the meta under reserved keys, and only when it
is said: a request without any keeps the fingerprint it always had.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
import rfc8785

from holdfast.protocol.refusal import Refusal, Refused

ENVELOPE_VERSION = "1"
PREFIX_BYTES = 8  # shown as 16 hex digits where two fingerprints differ
OBJECT_ID_BYTES = 32
META_DEPTH_MAX = 32  # nesting of objects and arrays; keeps the recursion bounded
META_BYTES_MAX = 65_536  # of all its texts, keys included; bounds the work, a message holds less
META_VALUES_MAX = 4096  # members of all objects plus elements of all arrays; each takes a microsecond or two
RESERVED_PREFIX = "holdfast."
NO_OBJECT = bytes(OBJECT_ID_BYTES)  # the object id of a message for which the caller named none


class DestinationKind(StrEnum):
    """The kind of a destination."""

    DM = "dm"
    TOPIC = "topic"
    QUEUE = "queue"


class Priority(StrEnum):
    """How urgent the caller says a message is."""

    NOW = "now"
    NEXT = "next"
    LOW = "low"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a request to send that tell two requests apart. Times are in microseconds."""

    destination_kind: DestinationKind
    destination_ref: str
    body: bytes
    reply_to: str | None = None
    priority: Priority = Priority.NEXT
    meta: Mapping[str, Any] | None = None
    object_id: bytes | None = None
    mentions: tuple[str, ...] = ()
    expires_at: int | None = None
    not_before: int | None = None


def fingerprint(request: Request) -> bytes:
    """The fingerprint of a request, 32 bytes."""
    meta = _all_meta(request)
    fields = (
        ENVELOPE_VERSION.encode(),
        request.destination_kind.value.encode(),
        _text(request.destination_ref, "destination_ref"),
        _text(request.reply_to or "", "reply_to"),
        request.priority.value.encode(),
        canonical_json(meta) if meta else b"",
        hashlib.sha256(request.body).hexdigest().encode(),
    )
    return hashlib.sha256(b"\x00".join(fields)).digest()


def fingerprint_prefix(fingerprint: bytes) -> str:
    """The first 16 hex digits of a fingerprint, as an answer shows them."""
    return fingerprint[:PREFIX_BYTES].hex()


def canonical_json(value: Any) -> bytes:
    """A JSON value in the one spelling of RFC 8785."""
    _check_bounds(value)
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError as error:
        raise Refused(Refusal.MALFORMED, "meta has an integer beyond 2**53 - 1, write it as a text") from error
    except rfc8785.FloatDomainError as error:
        raise Refused(Refusal.MALFORMED, "meta has a number that is not finite") from error
    except UnicodeEncodeError as error:
        raise Refused(Refusal.MALFORMED, "meta has a key that is not valid Unicode") from error
    except rfc8785.CanonicalizationError as error:
        raise Refused(Refusal.MALFORMED, f"meta has no canonical JSON: {error}") from error


def _all_meta(request: Request) -> dict[str, Any]:
    """The caller's meta and, under reserved keys, the other parts of the request."""
    meta = dict(request.meta or {})
    for key in meta:
        if isinstance(key, str) and key.startswith(RESERVED_PREFIX):
            raise Refused(Refusal.MALFORMED, f"meta keys starting with {RESERVED_PREFIX!r} are reserved")
    return meta | {RESERVED_PREFIX + name: value for name, value in _said(request).items()}


def _said(request: Request) -> dict[str, Any]:
    """The parts of a request beyond the seven fields, without those that it leaves out."""
    said: dict[str, Any] = {}
    if request.object_id is not None and len(request.object_id) != OBJECT_ID_BYTES:
        raise Refused(Refusal.MALFORMED, f"object_id has {len(request.object_id)} bytes, not {OBJECT_ID_BYTES}")
    if request.object_id and request.object_id != NO_OBJECT:
        said["object_id"] = request.object_id.hex()
    if request.mentions:
        said["mentions"] = list(request.mentions)
    if request.expires_at is not None:
        said["expires_at"] = request.expires_at
    if request.not_before is not None:
        said["not_before"] = request.not_before
    return said


def _text(text: str, field: str) -> bytes:
    """A text field as bytes; a zero byte inside would let two requests share one fingerprint."""
    if "\x00" in text:
        raise Refused(Refusal.MALFORMED, f"{field} has a NUL character")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Refused(Refusal.MALFORMED, f"{field} is not valid Unicode") from error


def _check_bounds(value: Any) -> None:
    """Refuse a value that is too large or nested too deep. It goes level by level: no recursion, and it stops at the limits."""
    level, values, size_bytes = [value], 0, 0
    for _ in range(META_DEPTH_MAX + 1):
        containers = [member for member in level if isinstance(member, dict | list | tuple)]
        size_bytes += sum(len(member) + len('""') for member in level if isinstance(member, str))
        if size_bytes > META_BYTES_MAX:
            raise Refused(Refusal.TOO_LARGE, f"meta has over {META_BYTES_MAX} bytes")
        values += sum(map(len, containers))
        if values > META_VALUES_MAX:
            raise Refused(Refusal.TOO_LARGE, f"meta has over {META_VALUES_MAX} values")
        level = [member for container in containers for member in _members(container)]
    if containers:
        raise Refused(Refusal.MALFORMED, f"meta is nested deeper than {META_DEPTH_MAX} levels")


def _members(container: Any) -> list[Any]:
    """The elements of an array, or the keys and values of an object."""
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)
