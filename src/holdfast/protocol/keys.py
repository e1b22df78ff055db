"""Member keys: secp256k1 key pairs, BIP-340 signatures, the shared point of two keys, and the texts npub and nsec.

A public key is 32 bytes, the x-coordinate, spelled as 64 lower-case hex digits. The only module that knows coincurve.
"""

from functools import lru_cache

from coincurve import PrivateKey, PublicKeyXOnly
from cryptography.hazmat.primitives.asymmetric import ec

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import is_hex

SECRET_BYTES = 32
PUBLIC_KEY_BYTES = 32
DIGEST_BYTES = 32
SIGNATURE_BYTES = 64
AUX_BYTES = 32
POINTS_KEPT = 4_096
"""Decompressed public keys in the cache: decompressing takes a fifth of a check, and the same members sign again."""

SECRETS_KEPT = 16
"""Prepared secret keys in the cache: preparing one takes half as long as a signature, and a program signs with few."""

_ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
_EVEN_Y = b"\x02"  # BIP-340 means the point with even y of the two that have an x; the shared x is the same for both
_CURVE = ec.SECP256K1()
_ECDH = ec.ECDH()

_BECH32_ALPHABET = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_BECH32_VALUES = {character: value for value, character in enumerate(_BECH32_ALPHABET)}
_BECH32_GENERATORS = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_BECH32_CHECKSUM_CHARACTERS = 6
_KEY_CHARACTERS = 52  # 256 bits in groups of five, the last one padded with zeros


def public_key(secret: bytes) -> str:
    """The public key of a secret key, in hex."""
    return _private(secret).public_key_xonly.format().hex()


def is_public_key(pubkey: str) -> bool:
    """Whether a text is the hex of a point on the curve."""
    return _point(pubkey) is not None


def sign(secret: bytes, digest: bytes, aux: bytes) -> bytes:
    """The BIP-340 signature of a digest. `aux` is 32 fresh random bytes; the same input gives the same signature."""
    if len(aux) != AUX_BYTES:  # the library would make its own if none are given
        raise ValueError(f"signing takes {AUX_BYTES} auxiliary bytes, not {len(aux)}")
    return _private(secret).sign_schnorr(digest, aux)


def verify(pubkey: str, digest: bytes, signature: bytes) -> bool:
    """Whether a signature is valid. Unreadable ones are not; `digest` may be of any length."""
    point = _point(pubkey)
    if point is None or len(signature) != SIGNATURE_BYTES:
        return False
    return point.verify(signature, digest)


class KeyExchange:
    """A secret key prepared for many key exchanges: preparing it takes as long as two of them."""

    def __init__(self, secret: bytes) -> None:
        self._private = ec.derive_private_key(_scalar(secret), _CURVE)

    def shared_x(self, pubkey: str) -> bytes:
        """The x-coordinate of the shared point (ECDH), not hashed, in constant time.

        Through `cryptography`: coincurve gives the coordinate only by a multiplication whose duration depends on the
        secret, and a stranger may choose the other key.
        """
        if not _is_hex_key(pubkey):
            raise Refused(Refusal.MALFORMED, "a public key is 64 lower-case hex digits")
        try:
            point = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, _EVEN_Y + bytes.fromhex(pubkey))
        except ValueError as error:
            raise Refused(Refusal.MALFORMED, "a public key is not on the curve") from error
        return self._private.exchange(_ECDH, point)


def shared_x(secret: bytes, pubkey: str) -> bytes:
    """The x-coordinate of the point that a secret and a public key share, for a single exchange."""
    return KeyExchange(secret).shared_x(pubkey)


def npub(pubkey: str) -> str:
    """A public key as people exchange it (NIP-19)."""
    if not _is_hex_key(pubkey):
        raise Refused(Refusal.MALFORMED, "a public key is 64 lower-case hex digits")
    return _bech32("npub", bytes.fromhex(pubkey))


def nsec(secret: bytes) -> str:
    """A secret key as people keep it (NIP-19)."""
    _scalar(secret)
    return _bech32("nsec", secret)


def read_npub(text: str) -> str:
    """The public key in an npub, in hex; refused if it is no point of the curve."""
    pubkey = _read_bech32("npub", text).hex()
    if not is_public_key(pubkey):
        raise Refused(Refusal.MALFORMED, "npub: the key is not on the curve")
    return pubkey


def read_nsec(text: str) -> bytes:
    """The secret key in an nsec."""
    secret = _read_bech32("nsec", text)
    _scalar(secret)
    return secret


def _scalar(secret: bytes) -> int:
    """A secret key as a number, or a refusal that does not quote it."""
    if len(secret) != SECRET_BYTES:
        raise Refused(Refusal.MALFORMED, f"a secret key has {SECRET_BYTES} bytes, not {len(secret)}")
    scalar = int.from_bytes(secret, "big")
    if not 0 < scalar < _ORDER:
        raise Refused(Refusal.MALFORMED, "a secret key is not between 1 and the order of the curve")
    return scalar


@lru_cache(SECRETS_KEPT)
def _private(secret: bytes) -> PrivateKey:
    _scalar(secret)  # the library would silently pad one that is too short
    return PrivateKey(secret)


@lru_cache(POINTS_KEPT)
def _point(pubkey: str) -> PublicKeyXOnly | None:
    if not _is_hex_key(pubkey):  # the library would read the first 32 bytes of any length
        return None
    try:
        return PublicKeyXOnly(bytes.fromhex(pubkey))
    except ValueError:
        return None


def _is_hex_key(text: str) -> bool:
    return len(text) == 2 * PUBLIC_KEY_BYTES and is_hex(text)


def _bech32(prefix: str, key: bytes) -> str:
    """BIP-173's text of a key: prefix, key and checksum in groups of five bits."""
    groups = _groups_of_five(key)
    total = _polymod([*_expanded(prefix), *groups, *[0] * _BECH32_CHECKSUM_CHARACTERS]) ^ 1
    checksum = [total >> 5 * (_BECH32_CHECKSUM_CHARACTERS - 1 - i) & 31 for i in range(6)]
    return prefix + "1" + "".join(_BECH32_ALPHABET[group] for group in [*groups, *checksum])


def _read_bech32(prefix: str, text: str) -> bytes:
    if text not in (text.lower(), text.upper()):
        raise Refused(Refusal.MALFORMED, f"{prefix}: upper and lower case are mixed")
    text = text.lower()
    if not text.startswith(prefix + "1"):
        raise Refused(Refusal.MALFORMED, f"{prefix}: it must start with {prefix}1")
    data = text[len(prefix) + 1 :]
    if len(data) != _KEY_CHARACTERS + _BECH32_CHECKSUM_CHARACTERS:
        raise Refused(Refusal.MALFORMED, f"{prefix}: {len(text)} characters are not the length of a key")
    if not _BECH32_VALUES.keys() >= set(data):
        raise Refused(Refusal.MALFORMED, f"{prefix}: it has a character outside the bech32 alphabet")
    groups = [_BECH32_VALUES[character] for character in data]
    if _polymod([*_expanded(prefix), *groups]) != 1:
        raise Refused(Refusal.MALFORMED, f"{prefix}: the checksum is wrong, a character may be mistyped")
    return _key_of(prefix, groups[:_KEY_CHARACTERS])


def _groups_of_five(key: bytes) -> list[int]:
    number = int.from_bytes(key, "big") << 5 * _KEY_CHARACTERS - 8 * len(key)
    return [number >> 5 * place & 31 for place in reversed(range(_KEY_CHARACTERS))]


def _key_of(prefix: str, groups: list[int]) -> bytes:
    number = 0
    for group in groups:
        number = number << 5 | group
    spare_bits = 5 * _KEY_CHARACTERS - 8 * SECRET_BYTES
    if number & (1 << spare_bits) - 1:
        raise Refused(Refusal.MALFORMED, f"{prefix}: the bits after the key are not zero")
    return (number >> spare_bits).to_bytes(SECRET_BYTES, "big")


def _expanded(prefix: str) -> list[int]:
    return [ord(character) >> 5 for character in prefix] + [0] + [ord(character) & 31 for character in prefix]


def _polymod(groups: list[int]) -> int:
    """The checksum of BIP-173: the remainder of a polynomial over the field of 32 elements."""
    remainder = 1
    for group in groups:
        top = remainder >> 25
        remainder = (remainder & 0x1FFFFFF) << 5 ^ group
        for bit, generator in enumerate(_BECH32_GENERATORS):
            remainder ^= generator if top >> bit & 1 else 0
    return remainder
