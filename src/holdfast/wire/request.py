"""Reading a request from ASGI: its whole body, the document in it, and its headers by name."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from holdfast.protocol.event import DETAIL_CHARACTERS_MAX
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.wire.response import Receive

MET_LOG = "holdfast-log"  # a header: the log id that the sender expects of this relay

Headers = dict[str, str]

T = TypeVar("T")


async def read_body(receive: Receive) -> bytes | None:
    """The whole body of a request; the connection limits its size. None if the other side disconnected."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message["body"])
        if not message["more_body"]:
            return b"".join(parts)


def read_document(body: bytes, shape: type[T], what: str = "request") -> T:
    """The JSON document in a body, or a refusal that names its fault."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(Refusal.MALFORMED, f"{what}: {ascii(str(error))[1:-1][:DETAIL_CHARACTERS_MAX]}") from error


def read_headers(scope: Any) -> Headers:
    """A request's headers by their names in lower case."""
    return by_name(scope["headers"])


def by_name(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers by their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def host_of(headers: Mapping[str, str]) -> str:
    """The host in the Host header, without its port."""
    return _host_in(headers.get("host", ""))


@lru_cache(maxsize=1024)  # called for every request, with few different hosts
def _host_in(written: str) -> str:
    try:
        return urlsplit(f"//{written}").hostname or ""
    except ValueError:
        return ""


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """The bearer token in the headers; None if there is none."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None
