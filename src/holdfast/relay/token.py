"""Export tokens: a consumer's name and a time, signed by the relay's own key. The relay keeps no list of them.

A token is `hft1_` and the base64url, without padding, of: when it expires (eight bytes, microseconds since 1970), the
BIP-340 signature (64), the consumer's name. It gives access to the export and that consumer's checkpoint, nothing else.
Only a new key of the relay revokes it before it expires.
"""

import base64
import binascii
import hashlib

from holdfast.protocol import keys, tags
from holdfast.protocol.refusal import Refusal, Refused

PREFIX = "hft1_"

_DOMAIN = b"holdfast export token 1\x00"  # so that nothing else the relay signs can pass for a token
_TIME_BYTES = 8
_TIME_MAX = 2**63 - 1
_FIXED_BYTES = _TIME_BYTES + keys.SIGNATURE_BYTES
_CHARACTERS_MAX = len(PREFIX) + (_FIXED_BYTES + tags.IDENTIFIER.characters_max) * 4 // 3 + 1


def mint(secret: bytes, consumer: str, expires_at: int, aux: bytes) -> str:
    """A token for one consumer. `aux` is 32 fresh random bytes."""
    tags.IDENTIFIER.check(consumer, "consumer")
    if not 0 <= expires_at <= _TIME_MAX:
        raise ValueError(f"a token cannot expire at {expires_at}")
    name = consumer.encode()
    signature = keys.sign(secret, _digest(expires_at, name), aux)
    return PREFIX + _encode(expires_at.to_bytes(_TIME_BYTES, "big") + signature + name)


def verify(token: str, pubkey: str, now: int) -> str:
    """The consumer that a token of this relay names; refused if the token is invalid or expired."""
    raw = _decode(token)
    expires_at = int.from_bytes(raw[:_TIME_BYTES], "big")
    signature, name = raw[_TIME_BYTES:_FIXED_BYTES], raw[_FIXED_BYTES:]
    if not keys.verify(pubkey, _digest(expires_at, name), signature):
        raise Refused(Refusal.TOKEN_INVALID, "this relay did not sign the token")
    if now >= expires_at:  # after the signature, so that a stranger learns nothing
        raise Refused(Refusal.TOKEN_EXPIRED, f"the token of {name.decode()} has expired")
    return name.decode()


def _digest(expires_at: int, name: bytes) -> bytes:
    return hashlib.sha256(_DOMAIN + expires_at.to_bytes(_TIME_BYTES, "big") + name).digest()


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(token: str) -> bytes:
    """The bytes of a token; refused unless it is in its one spelling."""
    if len(token) > _CHARACTERS_MAX or not token.startswith(PREFIX):
        raise Refused(Refusal.TOKEN_INVALID, "this is not an export token")
    text = token.removeprefix(PREFIX)
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error) as error:
        raise Refused(Refusal.TOKEN_INVALID, "the token is not base64url") from error
    if _encode(raw) != text:
        raise Refused(Refusal.TOKEN_INVALID, "the token is damaged")
    return raw
