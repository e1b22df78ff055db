"""The payload: the plaintext of a message, which only sender and recipient read.

    version (1 byte, 1) ‖ object_id (32) ‖ previous (8) ‖ meta length (4) ‖ meta ‖ body length (4) ‖ body

Numbers are big-endian. `previous` is 0 when the device never sent to this destination before, else the sequence it last
used there plus one. A meta length of 0 means no meta. Nothing may follow the body. Every value has one encoding.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.protocol.fingerprint import META_DEPTH_MAX, NO_OBJECT, OBJECT_ID_BYTES, canonical_json
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import INTEGER_MAX, check_bytes, check_range, check_type

PAYLOAD_VERSION = 1
PAYLOAD_BYTES_MAX = 40_960  # NIP-44 pads one byte more to 49,152, which no longer fits into an event
CONTENT_BYTES_MAX = 40_000  # body and meta together

_HEADER_BYTES = 1 + OBJECT_ID_BYTES + 8
_LENGTH_BYTES = 4


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """A message as its caller gave it, and the sequence of this device's previous message to the destination."""

    object_id: bytes = NO_OBJECT
    meta: bytes | None = None  # a JSON object in canonical form; one without members is absent
    body: bytes
    previous_sequence: int | None = None

    def __post_init__(self) -> None:
        check_bytes(self.object_id, "object_id", OBJECT_ID_BYTES)
        check_type(self.body, bytes, "body")
        check_type(b"" if self.meta is None else self.meta, bytes, "meta")
        content_bytes = len(self.meta or b"") + len(self.body)
        if content_bytes > CONTENT_BYTES_MAX:
            raise Refused(
                Refusal.TOO_LARGE,
                f"body and meta have {content_bytes} bytes, at most {CONTENT_BYTES_MAX} allowed",
            )
        if self.previous_sequence is not None:
            check_range(self.previous_sequence, "previous_sequence", 0)
        if self.meta is not None:
            _check_meta(self.meta)


def encode(payload: Payload) -> bytes:
    """The bytes to seal."""
    previous = 0 if payload.previous_sequence is None else payload.previous_sequence + 1
    return b"".join(
        (
            PAYLOAD_VERSION.to_bytes(1, "big"),
            payload.object_id,
            previous.to_bytes(8, "big"),
            _prefixed(payload.meta or b""),
            _prefixed(payload.body),
        )
    )


def decode(data: bytes) -> Payload:
    """The payload in decrypted bytes; refused unless it is the one encoding of its value."""
    if len(data) > PAYLOAD_BYTES_MAX:
        raise Refused(Refusal.TOO_LARGE, f"payload has {len(data)} bytes, at most {PAYLOAD_BYTES_MAX} allowed")
    if data[:1] and data[0] != PAYLOAD_VERSION:
        raise Refused(Refusal.MALFORMED, f"payload version {data[0]} is not {PAYLOAD_VERSION}")
    if len(data) < _HEADER_BYTES:
        raise Refused(Refusal.MALFORMED, f"payload ends after {len(data)} bytes, inside its header")
    previous = int.from_bytes(data[_HEADER_BYTES - 8 : _HEADER_BYTES], "big")
    meta, end = _read_prefixed(data, _HEADER_BYTES, "meta")
    body, end = _read_prefixed(data, end, "body")
    if end != len(data):
        raise Refused(Refusal.MALFORMED, f"payload has {len(data) - end} bytes after its body")
    return Payload(
        object_id=data[1 : 1 + OBJECT_ID_BYTES],
        meta=meta or None,
        body=body,
        previous_sequence=previous - 1 if previous else None,
    )


def canonical_meta(meta: Mapping[str, Any] | None) -> bytes | None:
    """A caller's meta in canonical JSON; None if there is none or it is empty."""
    return canonical_json(dict(meta)) if meta else None


def _prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def _read_prefixed(data: bytes, start: int, what: str) -> tuple[bytes, int]:
    """The bytes after the length at `start`, and the position where they end."""
    length_end = start + _LENGTH_BYTES
    if length_end > len(data):
        raise Refused(Refusal.MALFORMED, f"payload ends after {len(data)} bytes, inside the length of its {what}")
    end = length_end + int.from_bytes(data[start:length_end], "big")
    if end > len(data):
        raise Refused(Refusal.MALFORMED, f"payload ends after {len(data)} bytes, its {what} would end at {end}")
    return data[length_end:end], end


def _check_meta(meta: bytes) -> None:
    try:
        value = json.loads(meta.decode(), parse_int=_number)
    except ValueError as error:
        raise Refused(Refusal.MALFORMED, f"meta is not JSON: {error}") from None
    except RecursionError:
        raise Refused(Refusal.MALFORMED, f"meta is nested deeper than {META_DEPTH_MAX} levels") from None
    if not isinstance(value, dict):
        raise Refused(Refusal.MALFORMED, "meta is not a JSON object")
    if not value:
        raise Refused(Refusal.MALFORMED, "meta has no members: it must be absent instead")
    if canonical_meta(value) != meta:
        raise Refused(Refusal.MALFORMED, "meta is not in canonical form")


def _number(digits: str) -> int | float:
    """The number in these digits; past the exact range a float, as in canonical JSON, which writes it without exponent."""
    number = float(digits)
    return int(digits) if abs(number) <= INTEGER_MAX else number
