"""Authentication of an HTTP request (NIP-98): an event of kind 27235 in the Authorization header, signed for one request.

The event names the address, the method and the hash of the body, if there is one. Whether it is fresh and was not used
before is checked by the relay, which has a clock and a memory.
"""

import base64
import hashlib
from collections.abc import Collection

from holdfast.protocol.event import Event, decode, encode, sign_event, verify
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import shown

HTTP_AUTH_KIND = 27235
SCHEME = "Nostr"
NONCE_BYTES = 16


def authorization(secret: bytes, url: str, method: str, body: bytes, at_s: int, nonce: bytes, aux: bytes) -> str:
    """The Authorization header for one request. Each is valid once; the nonce keeps equal requests apart."""
    tags = [("u", url), ("method", method), ("nonce", nonce.hex())]
    if body:
        tags.append(("payload", hashlib.sha256(body).hexdigest()))
    event = sign_event(secret, at_s, HTTP_AUTH_KIND, tags, "", aux)
    return f"{SCHEME} {base64.b64encode(encode(event)).decode()}"


def read(credentials: str, method: str, urls: Collection[str], body: bytes) -> Event:
    """The event in the credentials; refused if not signed for this request. `urls` are all spellings of its address."""
    event = _decoded(credentials)
    _check_tags(event, method, urls, body)
    try:
        verify(event)
    except Refused as refused:
        raise failed(refused.detail) from refused
    return event


def failed(detail: str) -> Refused:
    """The refusal of a NIP-98 event."""
    return Refused(Refusal.AUTH_FAILED, f"the event of the Authorization header: {detail}")


def _decoded(credentials: str) -> Event:
    try:
        return decode(base64.b64decode(credentials, validate=True))
    except ValueError as error:
        raise failed("it is not base64") from error
    except Refused as refused:
        raise failed(refused.detail) from refused


def _check_tags(event: Event, method: str, urls: Collection[str], body: bytes) -> None:
    if event.kind != HTTP_AUTH_KIND:
        raise failed(f"its kind is {event.kind}, not {HTTP_AUTH_KIND}")
    url = _one(event, "u")
    if url not in urls:
        raise failed(f"it is for {shown(url)}; this is {' or '.join(sorted(urls))}")
    if _one(event, "method") != method:
        raise failed(f"it is for the method {shown(_one(event, 'method'))}, this is {method}")
    if (body or _values(event, "payload")) and _one(event, "payload") != hashlib.sha256(body).hexdigest():
        raise failed("its payload is not the hash of this body")


def _one(event: Event, name: str) -> str:
    values = _values(event, name)
    if len(values) != 1:
        raise failed(f"it has {len(values)} tags '{name}', it must have one")
    return values[0]


def _values(event: Event, name: str) -> list[str]:
    return [tag[1] if len(tag) > 1 else "" for tag in event.tags if tag[0] == name]
