"""The text of an invitation: all that is needed to join a mesh, in one word that can be pasted.

    holdfast1.  base64url( relay ‖ mesh ‖ mesh_name ‖ secret, each behind a two-byte length, ‖ checksum )

The checksum, four bytes of a sha256 over the rest, tells a mistyped invitation from an expired one. Anybody who has the text
can join with it, once, until it expires.
"""

import base64
import binascii
import hashlib

import msgspec

from holdfast.protocol import keys
from holdfast.protocol.action import Identifier, Name
from holdfast.protocol.keys import SECRET_BYTES

PREFIX = "holdfast1."
TEXT_CHARACTERS_MAX = 2048

_CHECKSUM_BYTES = 4
_LENGTH_BYTES = 2
_DOMAIN = b"holdfast invitation 1\x00"


class InvalidInvitation(ValueError):
    """A text that is not a complete invitation."""


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """The relay, the mesh, and the secret key of an invitation, which countersigns a join and is never sent to the relay."""

    relay: str
    mesh: Identifier
    mesh_name: Name
    secret: bytes

    @property
    def key(self) -> str:
        """The public key, by which the relay knows the invitation."""
        return keys.public_key(self.secret)

    def __repr__(self) -> str:
        return f"Invitation(relay={self.relay!r}, mesh={self.mesh!r})"  # without the secret, because it may be logged


def write(invitation: Invitation) -> str:
    """The text of an invitation."""
    fields = (
        invitation.relay.encode(),
        invitation.mesh.encode(),
        invitation.mesh_name.encode(),
        invitation.secret,
    )
    packed = b"".join(len(field).to_bytes(_LENGTH_BYTES, "big") + field for field in fields)
    return PREFIX + base64.urlsafe_b64encode(packed + _checksum(packed)).decode().rstrip("=")


def read(text: str) -> Invitation:
    """Read an invitation; but for space around it, any text that `write` would not have written is refused."""
    text = text.strip()
    if not text:
        raise InvalidInvitation("there is nothing in it")
    if len(text) > TEXT_CHARACTERS_MAX:
        raise InvalidInvitation(f"it has {len(text)} characters, an invitation at most {TEXT_CHARACTERS_MAX}")
    if not text.startswith(PREFIX):
        raise InvalidInvitation(f"an invitation starts with {PREFIX}; this one may be of a newer Holdfast")
    packed = _unwrapped(text.removeprefix(PREFIX))
    relay, mesh, mesh_name, secret = _fields(packed)
    if len(secret) != SECRET_BYTES:
        raise InvalidInvitation(f"its secret has {len(secret)} bytes, not {SECRET_BYTES}")
    try:
        texts = {"relay": relay.decode(), "mesh": mesh.decode(), "mesh_name": mesh_name.decode()}
        return msgspec.convert({**texts, "secret": secret}, Invitation)
    except (UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InvalidInvitation(f"it has a part that makes no sense ({error})") from error


def _unwrapped(text: str) -> bytes:
    """The bytes of an invitation without its checksum, which is verified."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInvitation("it has a character that does not belong there, or is cut off") from error
    packed, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if checksum != _checksum(packed) or base64.urlsafe_b64encode(data).decode().rstrip("=") != text:
        raise InvalidInvitation("its checksum is wrong: a character is mistyped or missing")
    return packed


def _fields(packed: bytes) -> list[bytes]:
    fields = []
    while packed:
        size = int.from_bytes(packed[:_LENGTH_BYTES], "big")
        field, packed = packed[_LENGTH_BYTES : _LENGTH_BYTES + size], packed[_LENGTH_BYTES + size :]
        if len(field) != size:
            raise InvalidInvitation("it is cut off")
        fields.append(field)
    if len(fields) != 4:
        raise InvalidInvitation(f"it has {len(fields)} parts, not 4")
    return fields


def _checksum(packed: bytes) -> bytes:
    return hashlib.sha256(_DOMAIN + packed).digest()[:_CHECKSUM_BYTES]
