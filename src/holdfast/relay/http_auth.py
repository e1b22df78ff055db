"""Who asks over HTTP (NIP-98): an event of kind 27235 in the Authorization header, signed for this request and this minute.

The event names the address, the method and the hash of the body, and counts once. The address is compared with those that
the relay knows itself to have, never with what the request says of its host: whoever is given such an event for another
server cannot use it here.
"""

import base64
import binascii
import hashlib
from collections.abc import Collection
from heapq import heappop, heappush

from holdfast.protocol.event import Event, decode, verify
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.protocol.tags import shown
from holdfast.store.world import Clock

HTTP_AUTH_KIND = 27235
SCHEME = "nostr"
WINDOW_S = 60  # how far the event's date may be from ours, in both directions
SEEN_MAX = 100_000  # events remembered at once; more in one window than anybody honest needs


class HttpAuth:
    """Tells who signed a request, and takes no signature twice."""

    def __init__(self, clock: Clock, seen_max: int = SEEN_MAX) -> None:
        self._clock = clock
        self._seen_max = seen_max
        self._seen: set[str] = set()
        self._forget: list[tuple[int, str]] = []  # when, in seconds, and which; the earliest first

    def signer(self, credentials: str, method: str, urls: Collection[str], body: bytes) -> str:
        """The key that signed this request; `urls` are all the ways to write its address."""
        now_s = self._clock() // SECOND
        event = _event(credentials)
        if abs(event.created_at - now_s) > WINDOW_S:
            raise _failed(f"it is dated {event.created_at}, the relay's clock says {now_s}")
        _check_tags(event, method, urls, body)
        try:
            verify(event)
        except Refused as refused:
            raise _failed(refused.detail) from refused
        self._spend(event, now_s)
        return event.pubkey

    def _spend(self, event: Event, now_s: int) -> None:
        while self._forget and self._forget[0][0] < now_s:
            self._seen.discard(heappop(self._forget)[1])
        if event.id in self._seen:
            raise _failed("it was used before; sign every request anew, with a tag 'nonce' where two would be the same")
        if len(self._seen) >= self._seen_max:
            raise Refused(Refusal.UNAVAILABLE, "too many signed requests within a minute")
        self._seen.add(event.id)
        heappush(self._forget, (event.created_at + WINDOW_S, event.id))


def _event(credentials: str) -> Event:
    try:
        return decode(base64.b64decode(credentials, validate=True))
    except (binascii.Error, ValueError) as error:
        raise _failed("it is not base64") from error
    except Refused as refused:
        raise _failed(refused.detail) from refused


def _check_tags(event: Event, method: str, urls: Collection[str], body: bytes) -> None:
    if event.kind != HTTP_AUTH_KIND:
        raise _failed(f"its kind is {event.kind}, not {HTTP_AUTH_KIND}")
    url = _one(event, "u")
    if url not in urls:
        raise _failed(f"it is for {shown(url)}; this is {' or '.join(sorted(urls))}")
    if _one(event, "method") != method:
        raise _failed(f"it is for the method {shown(_one(event, 'method'))}, this is {method}")
    if (body or _values(event, "payload")) and _one(event, "payload") != hashlib.sha256(body).hexdigest():
        raise _failed("its payload is not the hash of this body")


def _one(event: Event, name: str) -> str:
    values = _values(event, name)
    if len(values) != 1:
        raise _failed(f"it has {len(values)} tags '{name}', it must have one")
    return values[0]


def _values(event: Event, name: str) -> list[str]:
    return [tag[1] if len(tag) > 1 else "" for tag in event.tags if tag[0] == name]


def _failed(detail: str) -> Refused:
    return Refused(Refusal.AUTH_FAILED, f"the event of the Authorization header: {detail}")
