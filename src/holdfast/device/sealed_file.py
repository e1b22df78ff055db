"""A file that only a passphrase opens: Argon2id makes the key, ChaCha20-Poly1305 seals the content piece by piece.

    magic (16 bytes) ‖ length of the header (2) ‖ header (JSON) ‖ check (32) ‖ pieces

The nonce of a piece is its number and whether it is the last, and all bytes before the pieces are its associated data. So a
piece that is changed, missing, moved or added is noticed, and so is a file that ends early. Numbers can serve as nonces
because the salt, and with it the key, is used for one file only. The content never has to be in memory as a whole.
"""

import hmac
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Annotated, BinaryIO, Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from msgspec import Meta

from holdfast.store import faults
from holdfast.store.world import Random

MAGIC = b"holdfast backup\n"
PIECE_BYTES = 65_536
PASSPHRASE_CHARACTERS_MIN = 8

_KEY_BYTES = 32
_CHECK_BYTES = 32
_TAG_BYTES = 16
_SALT_BYTES = 16
_NUMBER_BYTES = 11  # of a nonce; its twelfth byte says whether the piece is the last
_LENGTH_BYTES = 2
_HEADER_BYTES_MAX = 4_096


class NotSealed(faults.Fault):
    what = "this is not a backup of a home"
    remedy = "Correct the path. A relay's backup is a directory, and restored with `holdfast relay restore`."


class WrongPassphrase(faults.Fault):
    what = "the passphrase does not open this backup"
    remedy = "Try again; upper and lower case and spaces count. If it is surely right, the file was changed at its beginning."


class SealBroken(faults.Fault):
    what = "this backup is not whole: it was changed or cut off after it was made"
    remedy = "Take another copy of it, or an earlier backup. Nothing of this one was used."


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the key is derived, by RFC 9106's second recommendation; the limits keep a file from asking for too much."""

    version: Literal[1] = 1
    kdf: Literal["argon2id"] = "argon2id"
    cipher: Literal["chacha20-poly1305"] = "chacha20-poly1305"
    salt: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    iterations: Annotated[int, Meta(ge=1, le=64)] = 3
    lanes: Annotated[int, Meta(ge=1, le=64)] = 4
    memory_kib: Annotated[int, Meta(ge=8_192, le=1_048_576)] = 65_536


def write(file: BinaryIO, passphrase: str, random: Random, content: Iterable[bytes]) -> None:
    """Seal content into a file."""
    encoded = msgspec.json.encode(Header(salt=random(_SALT_BYTES).hex()))
    key, check = _keys(passphrase, msgspec.json.decode(encoded, type=Header))
    before = MAGIC + len(encoded).to_bytes(_LENGTH_BYTES, "big") + encoded + check
    cipher = ChaCha20Poly1305(key)
    file.write(before)
    for number, piece, is_last in _numbered(_pieces(content)):
        file.write(cipher.encrypt(_nonce(number, is_last), piece, before))


def read(file: BinaryIO, passphrase: str, where: str) -> Iterator[bytes]:
    """Yield the content of a sealed file piece by piece, each verified; raises if it was changed or cut off."""
    before, header, check = _opening(file, where)
    key, expected = _keys(passphrase, header)
    if not hmac.compare_digest(check, expected):
        raise WrongPassphrase(where)
    cipher = ChaCha20Poly1305(key)
    for number, sealed, is_last in _numbered(_sealed_pieces(file)):
        try:
            yield cipher.decrypt(_nonce(number, is_last), sealed, before)
        except InvalidTag as error:
            raise SealBroken(where, f"piece {number}") from error


def _opening(file: BinaryIO, where: str) -> tuple[bytes, Header, bytes]:
    start = file.read(len(MAGIC) + _LENGTH_BYTES)
    length = int.from_bytes(start[len(MAGIC) :], "big")
    if not start.startswith(MAGIC) or length > _HEADER_BYTES_MAX:
        raise NotSealed(where)
    encoded, check = file.read(length), file.read(_CHECK_BYTES)
    try:
        header = msgspec.json.decode(encoded, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SealBroken(where, f"its beginning: {error}") from error
    if len(check) != _CHECK_BYTES:
        raise SealBroken(where, "it ends in its beginning")
    return start + encoded + check, header, check


def _keys(passphrase: str, header: Header) -> tuple[bytes, bytes]:
    """The key, and the check by which a wrong passphrase is noticed before anything is opened."""
    derived = Argon2id(
        salt=bytes.fromhex(header.salt),
        length=_KEY_BYTES + _CHECK_BYTES,
        iterations=header.iterations,
        lanes=header.lanes,
        memory_cost=header.memory_kib,
    ).derive(unicodedata.normalize("NFC", passphrase).encode())  # accents may be typed composed or decomposed
    return derived[:_KEY_BYTES], derived[_KEY_BYTES:]


def _pieces(content: Iterable[bytes]) -> Iterator[bytes]:
    """Cut content into pieces of one size; the last may be shorter, or empty."""
    waiting = b""
    for part in content:
        waiting += part
        while len(waiting) >= PIECE_BYTES:
            yield waiting[:PIECE_BYTES]
            waiting = waiting[PIECE_BYTES:]
    yield waiting


def _sealed_pieces(file: BinaryIO) -> Iterator[bytes]:
    size = PIECE_BYTES + _TAG_BYTES
    piece = file.read(size)
    while len(piece) == size:
        yield piece
        piece = file.read(size)
    yield piece  # shorter than the others, as the last always is; one without even a tag fails to open


def _numbered(pieces: Iterator[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """Each piece with its number, and whether it is the last."""
    number, piece = 0, next(pieces)
    for following in pieces:
        yield number, piece, False
        number, piece = number + 1, following
    yield number, piece, True


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big") + bytes([is_last])
