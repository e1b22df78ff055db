"""Sealing (NIP-44, version 2): a text that only holders of a conversation key can read, and that shows any change.

Two members share a conversation key by their key pairs; a topic has a random one. There is no forward secrecy: whoever
gets a key later opens everything that was sealed with it.

    base64( version (1 byte, 2) ‖ nonce (32) ‖ ChaCha20( length ‖ plaintext ‖ zeros ) ‖ HMAC-SHA256 (32) )

The length takes two bytes, or from 65,536 bytes on two zero bytes and four more.
"""

from base64 import b64decode, b64encode
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from holdfast.protocol.keys import KeyExchange
from holdfast.protocol.refusal import Refusal, Refused

CONVERSATION_KEY_BYTES = 32
NONCE_BYTES = 32
PLAINTEXT_BYTES_MAX = 1_048_576  # the format could say 4 GiB; an event holds far less than this
CONVERSATION_KEYS_MAX = 4096  # kept by one device: correspondents whose key is not computed again

_VERSION = 2
_SALT = b"nip44-v2"
_MAC_BYTES = 32
_SHORT_PREFIX_BYTES = 2
_LONG_PREFIX_BYTES = 6
_LONG_PLAINTEXT_BYTES = 65_536  # from here on the length takes the long prefix
_PADDED_BYTES_MIN = 32
_COUNTER = bytes(4)  # ChaCha20 starts at block 0
_SHA256 = SHA256()
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def conversation_key(secret: bytes, pubkey: str) -> bytes:
    """The key that two members share, the same from either side."""
    return _conversation_key(KeyExchange(secret), pubkey)


class ConversationKeys:
    """The conversation keys of one secret key, the most recently used ones remembered."""

    def __init__(self, secret: bytes, keys_max: int = CONVERSATION_KEYS_MAX) -> None:
        exchange = KeyExchange(secret)
        self._key = lru_cache(keys_max)(lambda pubkey: _conversation_key(exchange, pubkey))

    def key(self, pubkey: str) -> bytes:
        """The conversation key shared with a member."""
        return self._key(pubkey)

    def __len__(self) -> int:
        return self._key.cache_info().currsize


def seal(key: bytes, plaintext: bytes, nonce: bytes) -> str:
    """A plaintext sealed with a conversation key. `nonce` is 32 random bytes, never used twice with one key."""
    _check_length("conversation key", key, CONVERSATION_KEY_BYTES)
    _check_length("nonce", nonce, NONCE_BYTES)
    cipher_key, cipher_nonce, mac_key = _message_keys(key, nonce)
    ciphertext = _chacha20(cipher_key, cipher_nonce, _padded(plaintext))
    mac = _hmac(mac_key, nonce, ciphertext).finalize()
    return b64encode(b"".join((bytes((_VERSION,)), nonce, ciphertext, mac))).decode()


def open_sealed(key: bytes, payload: str) -> bytes:
    """The plaintext in a sealed payload, or a refusal; nothing of it is decrypted before the whole is authentic."""
    _check_length("conversation key", key, CONVERSATION_KEY_BYTES)
    data = _unwrapped(payload)
    nonce, ciphertext, mac = (
        data[1 : 1 + NONCE_BYTES],
        data[1 + NONCE_BYTES : -_MAC_BYTES],
        data[-_MAC_BYTES:],
    )
    cipher_key, cipher_nonce, mac_key = _message_keys(key, nonce)
    try:
        _hmac(mac_key, nonce, ciphertext).verify(mac)
    except InvalidSignature as error:
        raise _unreadable("it was sealed with another key or changed since") from error
    return _unpadded(_chacha20(cipher_key, cipher_nonce, ciphertext))


def padded_length(length: int) -> int:
    """The length to which a plaintext is padded: eight steps between powers of two, never under 32 bytes."""
    if length <= _PADDED_BYTES_MIN:
        return _PADDED_BYTES_MIN
    step = max(_PADDED_BYTES_MIN, (1 << (length - 1).bit_length()) // 8)
    return step * ((length - 1) // step + 1)


def payload_characters(length: int) -> int:
    """The length of the sealed payload of a plaintext of so many bytes."""
    data = 1 + NONCE_BYTES + _prefix_bytes(length) + padded_length(length) + _MAC_BYTES
    return 4 * ((data + 2) // 3)


def is_payload(text: str) -> bool:
    """Whether a text can be a sealed payload, as far as its version, spelling and length show without the key."""
    digits = text.rstrip("=")
    if len(text) % 4 or not _is_possible(len(text) // 4 * 3 - (len(text) - len(digits))):
        return False
    if not digits.isascii() or digits.encode().translate(None, _BASE64):  # characters remain that are not base64
        return False
    first, last = text[:4], text[-4:]  # the version, and the unused bits, which must be zero
    return b64decode(first)[0] == _VERSION and b64encode(b64decode(last)).decode() == last


def _is_possible(length: int) -> bool:
    """Whether some plaintext of an allowed length makes a payload of so many bytes, before base64."""
    padded = length - 1 - NONCE_BYTES - _MAC_BYTES
    is_long = padded - _LONG_PREFIX_BYTES >= _LONG_PLAINTEXT_BYTES
    filled = padded - (_LONG_PREFIX_BYTES if is_long else _SHORT_PREFIX_BYTES)
    return filled <= PLAINTEXT_BYTES_MAX and filled == padded_length(filled)


def _conversation_key(exchange: KeyExchange, pubkey: str) -> bytes:
    extract = HMAC(_SALT, _SHA256)  # the first half of HKDF is an HMAC keyed with the salt
    extract.update(exchange.shared_x(pubkey))
    return extract.finalize()


def _unwrapped(payload: str) -> bytes:
    """The bytes of a payload; refused unless version and length are known and the base64 is canonical."""
    if len(payload) > PAYLOAD_CHARACTERS_MAX:  # before spending any work on it
        raise _unreadable(f"{len(payload)} characters, at most {PAYLOAD_CHARACTERS_MAX} are read")
    if payload.startswith("#"):
        raise _unreadable("its version is not known here (it starts with #)")
    if len(payload) < PAYLOAD_CHARACTERS_MIN:
        raise _unreadable(f"{len(payload)} characters, at least {PAYLOAD_CHARACTERS_MIN} are needed")
    try:
        data = b64decode(payload)
    except ValueError as error:
        raise _unreadable("it is not base64") from error
    if b64encode(data).decode() != payload:  # the decoder skips foreign characters and ignores unused bits
        raise _unreadable("it is not base64 in its one spelling")
    if data[0] != _VERSION:
        raise _unreadable(f"version {data[0]} is not known here")
    return data


def _message_keys(key: bytes, nonce: bytes) -> tuple[bytes, bytes, bytes]:
    """The keys of one message: of the cipher, its nonce, of the MAC."""
    derived = HKDFExpand(_SHA256, 76, nonce).derive(key)
    return derived[:32], derived[32:44], derived[44:]


def _chacha20(key: bytes, nonce: bytes, data: bytes) -> bytes:
    return Cipher(ChaCha20(key, _COUNTER + nonce), mode=None).encryptor().update(data)


def _hmac(key: bytes, nonce: bytes, ciphertext: bytes) -> HMAC:
    mac = HMAC(key, _SHA256)
    mac.update(nonce)
    mac.update(ciphertext)
    return mac


def _padded(plaintext: bytes) -> bytes:
    length = len(plaintext)
    if length == 0:
        raise Refused(Refusal.MALFORMED, "an empty plaintext cannot be sealed")
    if length > PLAINTEXT_BYTES_MAX:
        raise Refused(Refusal.TOO_LARGE, f"plaintext: {length} bytes, at most {PLAINTEXT_BYTES_MAX} are sealed")
    prefix = (length if length < _LONG_PLAINTEXT_BYTES else 0).to_bytes(2, "big")
    if length >= _LONG_PLAINTEXT_BYTES:
        prefix += length.to_bytes(4, "big")
    return b"".join((prefix, plaintext, bytes(padded_length(length) - length)))


def _unpadded(padded: bytes) -> bytes:
    length = int.from_bytes(padded[:_SHORT_PREFIX_BYTES], "big")
    if length == 0:
        length = int.from_bytes(padded[_SHORT_PREFIX_BYTES:_LONG_PREFIX_BYTES], "big")
        if length < _LONG_PLAINTEXT_BYTES:  # a short plaintext must have the short prefix
            raise _unreadable("its padding is wrong: a long prefix before a short plaintext")
    start = _prefix_bytes(length)
    if length > PLAINTEXT_BYTES_MAX or len(padded) != start + padded_length(length):
        raise _unreadable(f"its padding is wrong: {len(padded)} bytes do not hold a plaintext of {length}")
    return padded[start : start + length]


def _prefix_bytes(length: int) -> int:
    return _SHORT_PREFIX_BYTES if length < _LONG_PLAINTEXT_BYTES else _LONG_PREFIX_BYTES


def _check_length(what: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise ValueError(f"a {what} has {length} bytes, not {len(value)}")


def _unreadable(fault: str) -> Refused:
    return Refused(Refusal.UNREADABLE, f"sealed payload: {fault}")


PAYLOAD_CHARACTERS_MIN = payload_characters(1)
PAYLOAD_CHARACTERS_MAX = payload_characters(PLAINTEXT_BYTES_MAX)
