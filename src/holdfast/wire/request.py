"""What a request is when it arrives over ASGI: its body whole, its headers by name."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from holdfast.wire.response import Receive

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
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def host_of(headers: Mapping[str, str]) -> str:
    """The host that the caller believes to speak to, without its port."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """The token that the caller shows, if any."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else None
