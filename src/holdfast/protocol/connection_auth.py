"""Authentication of a WebSocket (NIP-42): an event of kind 22242, signed over the connection's own challenge.

The event also names the relay, so that a relay that receives one cannot use it to log in at another.
"""

from collections.abc import Collection

from holdfast.protocol.event import Event, sign_event, verify
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import shown

CONNECTION_AUTH_KIND = 22242
CHALLENGE_BYTES = 32
AGE_S_MAX = 600  # how far the event's date may be from the relay's clock, either way

_SCHEMES = {"http": "ws", "https": "wss"}


def sign_connection_auth(secret: bytes, url: str, challenge: str, at_s: int, aux: bytes) -> Event:
    """The signed AUTH event that answers a relay's challenge."""
    tags = (("relay", normal_url(url)), ("challenge", challenge))
    return sign_event(secret, at_s, CONNECTION_AUTH_KIND, tags, "", aux)


def check_connection_auth(event: Event, challenge: str, urls: Collection[str], at_s: int) -> None:
    """Refuse an event that was not signed for this connection just now; `urls` are all spellings of the relay's address."""
    if event.kind != CONNECTION_AUTH_KIND:
        raise failed(f"its kind is {event.kind}, not {CONNECTION_AUTH_KIND}")
    if _one(event, "challenge") != challenge:
        raise failed("it answers another challenge than this connection's")
    url = _one(event, "relay")
    if normal_url(url) not in {normal_url(own) for own in urls}:
        raise failed(f"it is for {shown(url)}; this is {' or '.join(sorted(map(normal_url, urls)))}")
    if abs(event.created_at - at_s) > AGE_S_MAX:
        raise failed(f"it is dated {event.created_at}, the relay's clock says {at_s}")
    try:
        verify(event)
    except Refused as refused:
        raise failed(refused.detail) from refused


def normal_url(url: str) -> str:
    """An address in the form used to compare: scheme ws or wss, no final slash, scheme and host in lower case."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    named = _SCHEMES.get(scheme.lower(), scheme.lower())
    return f"{named}{separator}{host.lower()}{slash}{path}".rstrip("/")


def failed(detail: str) -> Refused:
    """The refusal of an AUTH event."""
    return Refused(Refusal.AUTH_FAILED, f"the event of AUTH: {detail}")


def _one(event: Event, name: str) -> str:
    values = [tag[1] if len(tag) > 1 else "" for tag in event.tags if tag[0] == name]
    if len(values) != 1:
        raise failed(f"it has {len(values)} tags '{name}', it must have one")
    return values[0]
