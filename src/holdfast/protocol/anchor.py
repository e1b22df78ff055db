"""Anchors: the relay's signature under where its history stood after a commit, so that it cannot be rewritten unnoticed."""

import hashlib

import msgspec

from holdfast.protocol import keys

_ANCHOR = b"holdfast anchor 1\x00"


class Anchor(msgspec.Struct, frozen=True):
    """A position of a log with the chain up to it, and the relay's signature."""

    log_id: str
    seq: int
    chain: str
    sig: str


def digest(log_id: bytes, seq: int, chain: bytes) -> bytes:
    """What the relay signs."""
    return hashlib.sha256(_ANCHOR + log_id + seq.to_bytes(8, "big") + chain).digest()


def sign_anchor(secret: bytes, log_id: bytes, seq: int, chain: bytes, aux: bytes) -> Anchor:
    """The anchor of a position."""
    signature = keys.sign(secret, digest(log_id, seq, chain), aux)
    return Anchor(log_id.hex(), seq, chain.hex(), signature.hex())


def is_signed(anchor: Anchor, pubkey: str) -> bool:
    """Whether the relay with this key signed it."""
    signed = digest(bytes.fromhex(anchor.log_id), anchor.seq, bytes.fromhex(anchor.chain))
    return keys.verify(pubkey, signed, bytes.fromhex(anchor.sig))
