"""Small files that programs write for themselves: JSON with a digest of its content, so that damage is noticed."""

import hashlib
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_DIGEST = "digest"


def write(said: Any) -> bytes:
    """A struct or dataclass as JSON with its digest."""
    content: dict[str, Any] = msgspec.to_builtins(said)
    return msgspec.json.format(msgspec.json.encode(content | {_DIGEST: _digest(content)}), indent=2) + b"\n"


def read(raw: bytes, shape: type[T]) -> T:
    """The struct in a file's bytes; raises msgspec.DecodeError if it is damaged. A file without a digest is not checked."""
    try:
        content = msgspec.json.decode(raw, type=dict[str, Any])
    except RecursionError:
        raise msgspec.DecodeError("it is nested without end") from None
    digest = content.pop(_DIGEST, None)
    if digest not in (None, _digest(content)):
        raise msgspec.DecodeError("it was changed since it was written")
    return msgspec.convert(content, shape)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()
