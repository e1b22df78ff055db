"""Anchors: the relay's signature under the end of its history after a commit, so that no rewriting goes unnoticed."""

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.protocol import keys
from holdfast.protocol.action import LogId, Position, Signature

Chain = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]

_ANCHOR = b"holdfast anchor 1\x00"


class Anchor(msgspec.Struct, frozen=True):
    """A position of a log with the chain up to it, and the relay's signature; all in hex but for the position."""

    log_id: LogId
    seq: Position
    chain: Chain
    sig: Signature


def digest(log_id: bytes, seq: int, chain: bytes) -> bytes:
    """The digest of a log id, position and chain, which the relay signs."""
    return hashlib.sha256(_ANCHOR + log_id + seq.to_bytes(8, "big") + chain).digest()


def sign_anchor(secret: bytes, log_id: bytes, seq: int, chain: bytes, aux: bytes) -> Anchor:
    """The anchor of a position."""
    signature = keys.sign(secret, digest(log_id, seq, chain), aux)
    return Anchor(log_id.hex(), seq, chain.hex(), signature.hex())


def is_signed(anchor: Anchor, pubkey: str) -> bool:
    """Whether the relay with this key signed the anchor."""
    signed = digest(bytes.fromhex(anchor.log_id), anchor.seq, bytes.fromhex(anchor.chain))
    return keys.verify(pubkey, signed, bytes.fromhex(anchor.sig))
