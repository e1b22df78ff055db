"""What a request is when it arrives over ASGI: its body whole, its headers by name."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from holdfast.wire.response import Receive

MET_LOG = "holdfast-log"  # the log by which the sender of a request knows this relay

Headers = dict[str, str]


async def read_body(receive: Receive) -> bytes | None:
    """All of a request's body; its size is the wire's matter. None if the other side left."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message["body"])
        if not message["more_body"]:
            return b"".join(parts)


def read_headers(scope: Any) -> Headers:
    """The headers by their names in lower case."""
    return by_name(scope["headers"])


def by_name(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers by their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def host_of(headers: Mapping[str, str]) -> str:
    """The host that the caller believes to speak to, without its port."""
    return _host_in(headers.get("host", ""))


@lru_cache(maxsize=1024)  # asked of every request, and of few hosts
def _host_in(written: str) -> str:
    try:
        return urlsplit(f"//{written}").hostname or ""
    except ValueError:
        return ""


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """The token that the caller shows, if any."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None
