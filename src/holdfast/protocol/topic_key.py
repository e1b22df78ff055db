"""Topic keys: the id of a key, the key that each sender derives from it, and how a grant is opened.

The id of a key commits to the key, its mesh, its topic and its epoch, and is compared when a grant is opened. So nobody can
hand out two keys under one id, or pass off a grant of one topic as another's.
"""

import hashlib

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.sealing import CONVERSATION_KEY_BYTES, open_sealed

KEY_ID_BYTES = 16

_KEY_ID = b"holdfast topic key 1\x00"
_SENDER = b"holdfast topic 1\x00"


def key_id(mesh: str, topic: str, key_epoch: int, key: bytes) -> str:
    """The id of a topic's key of one epoch, in hex."""
    fields = (mesh.encode(), topic.encode(), key_epoch.to_bytes(8, "big"), key)
    prefixed = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hashlib.sha256(_KEY_ID + prefixed).digest()[:KEY_ID_BYTES].hex()


def sealing_key(key: bytes, sender: str) -> bytes:
    """The key that seals one sender's messages to a topic, so that nobody can publish another's message as their own."""
    mac = HMAC(key, SHA256())
    mac.update(_SENDER + bytes.fromhex(sender))
    return mac.finalize()


def open_grant(conversation_key: bytes, sealed: str, mesh: str, topic: str, key_epoch: int, named: str) -> bytes:
    """The key in a grant; refused if it is not the one that the grant names."""
    key = open_sealed(conversation_key, sealed)
    if len(key) != CONVERSATION_KEY_BYTES:
        raise Refused(Refusal.UNREADABLE, f"a topic's key has {CONVERSATION_KEY_BYTES} bytes, this one {len(key)}")
    if key_id(mesh, topic, key_epoch, key) != named:
        raise Refused(Refusal.UNREADABLE, f"the grant holds another key than {named}")
    return key
