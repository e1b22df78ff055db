"""Signed events (NIP-01): the one form in which anything is published.

`decode` reads bytes that anybody may have sent: its work is bounded by the size limit, it takes exactly the seven fields
in their types and limits, and it names the fault it refuses. It does not check that the event is what its author signed:
`check_id` (a hash) and then `check_signature` (far slower, meant for a thread) do.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.protocol import keys
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import is_hex

EVENT_BYTES_MAX = 65_536  # of the JSON as it travels
KIND_MAX = 65_535
CREATED_AT_MAX_S = (2**63 - 1) // 1_000_000  # in microseconds it still fits 64 bits
TAGS_MAX = 1024
VALUES_PER_TAG_MAX = 64
TAG_VALUE_CHARACTERS_MAX = 4096
DETAIL_CHARACTERS_MAX = 200  # of an error that is sent back; it may quote what a stranger sent

_FIELDS = 7
# A field's name: a quotation mark after a letter or digit is not escaped, so it ends a text, and a colon follows.
_FIELD = re.compile(rb'"(?<=[0-9A-Za-z]")\s*:')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_TAIL_BYTES = 16

_Hex32 = Annotated[str, Meta(min_length=64, max_length=64)]
_Hex64 = Annotated[str, Meta(min_length=128, max_length=128)]
_TagValue = Annotated[str, Meta(max_length=TAG_VALUE_CHARACTERS_MAX)]
_Tag = Annotated[tuple[_TagValue, ...], Meta(min_length=1, max_length=VALUES_PER_TAG_MAX)]


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A signed event; `created_at` is in seconds."""

    id: _Hex32
    pubkey: _Hex32
    created_at: Annotated[int, Meta(ge=0, le=CREATED_AT_MAX_S)]
    kind: Annotated[int, Meta(ge=0, le=KIND_MAX)]
    tags: Annotated[tuple[_Tag, ...], Meta(max_length=TAGS_MAX)]
    content: str
    sig: _Hex64


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def canonical_bytes(pubkey: str, created_at: int, kind: int, tags: Sequence[Sequence[str]], content: str) -> bytes:
    """The bytes whose hash is the id: JSON without spaces, with the shortest escapes and only where JSON needs one.

    NIP-01 names seven escapes and wants all else verbatim. The other control characters cannot stand verbatim in JSON;
    every implementation writes them as \\u and four lower-case hex digits, and so does this one.
    """
    try:
        return _encoder.encode((0, pubkey, created_at, kind, tags, content))
    except UnicodeEncodeError as error:
        raise Refused(Refusal.MALFORMED, "event: a text has a lone surrogate") from error


def event_id(pubkey: str, created_at: int, kind: int, tags: Sequence[Sequence[str]], content: str) -> str:
    """The id of an event, in hex."""
    return hashlib.sha256(canonical_bytes(pubkey, created_at, kind, tags, content)).hexdigest()


def sign_event(
    secret: bytes, created_at: int, kind: int, tags: Sequence[Sequence[str]], content: str, aux: bytes
) -> Event:
    """A signed event; refused if `decode` would refuse it."""
    pubkey = keys.public_key(secret)
    frozen_tags = tuple(tuple(tag) for tag in tags)
    identifier = event_id(pubkey, created_at, kind, frozen_tags, content)
    signature = keys.sign(secret, bytes.fromhex(identifier), aux).hex()
    return decode(encode(Event(identifier, pubkey, created_at, kind, frozen_tags, content, signature)))


def encode(event: Event) -> bytes:
    """The event's bytes on the wire."""
    return _encoder.encode(event)


def decode(raw: bytes | str) -> Event:
    """The event in bytes from anybody: well-formed, but not yet verified."""
    raw = _as_bytes(raw)
    if len(raw) > EVENT_BYTES_MAX:
        raise Refused(Refusal.TOO_LARGE, f"event: {len(raw)} bytes, at most {EVENT_BYTES_MAX} are allowed")
    try:
        event = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(Refusal.MALFORMED, _fault(raw, error)) from error
    _check_hex(event)
    if raw.count(b":") != _FIELDS and len(_FIELD.findall(raw)) != _FIELDS:
        raise Refused(Refusal.MALFORMED, "event: a field stands twice")  # the decoder silently took the last
    return event


def check_id(event: Event) -> None:
    """Refuse an event whose id is not the hash of its fields."""
    if event.id != event_id(event.pubkey, event.created_at, event.kind, event.tags, event.content):
        raise Refused(Refusal.BAD_EVENT_ID, "event: the id is not the hash of the event")


def check_signature(event: Event) -> None:
    """Refuse an event whose id its author did not sign. It checks nothing else: call `check_id` first."""
    if not is_signed(event):
        raise bad_signature()


def is_signed(event: Event) -> bool:
    """Whether the author signed the event's id."""
    return keys.verify(event.pubkey, bytes.fromhex(event.id), bytes.fromhex(event.sig))


def bad_signature() -> Refused:
    return Refused(Refusal.BAD_SIGNATURE, "event: the signature is not its author's")


def verify(event: Event) -> None:
    """Refuse an event that is not what its author signed."""
    check_id(event)
    check_signature(event)


def _as_bytes(raw: bytes | str) -> bytes:
    try:
        return raw.encode() if isinstance(raw, str) else raw
    except UnicodeEncodeError as error:
        raise Refused(Refusal.MALFORMED, "event: a text has a lone surrogate") from error


def _check_hex(event: Event) -> None:
    if is_hex(event.id + event.pubkey + event.sig):
        return
    for name, text in (("id", event.id), ("pubkey", event.pubkey), ("sig", event.sig)):
        if not is_hex(text):
            raise Refused(Refusal.MALFORMED, f"event: {name} is not lower-case hex")


def _fault(raw: bytes, error: msgspec.DecodeError | UnicodeDecodeError) -> str:
    """The fault in bytes that the decoder refused, as one log line."""
    if isinstance(error, UnicodeDecodeError):
        return "event: a text is not UTF-8"
    fault = str(error)
    if "surrogate" in fault or ("truncated" in fault and _SURROGATE.search(raw[-_TAIL_BYTES:])):
        return "event: a text has a lone surrogate"
    return f"event: {ascii(fault)[1:-1][:DETAIL_CHARACTERS_MAX]}"
