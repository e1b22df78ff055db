"""Anchors: signed by the relay, and by nobody else for anything else."""

import hashlib

import msgspec
import pytest

from holdfast.protocol import keys
from holdfast.protocol.anchor import is_signed, sign_anchor

RELAY, OTHER = b"r" * 32, b"o" * 32
ANCHOR = sign_anchor(RELAY, b"l" * 16, 7, b"c" * 32, bytes(32))


def test_an_anchor_is_the_relays_word() -> None:
    assert is_signed(ANCHOR, keys.public_key(RELAY))
    signed = hashlib.sha256(b"holdfast anchor 1\x00" + b"l" * 16 + (7).to_bytes(8, "big") + b"c" * 32).digest()
    assert keys.verify(keys.public_key(RELAY), signed, bytes.fromhex(ANCHOR.sig))


@pytest.mark.parametrize("changed", [{"seq": 8}, {"chain": "00" * 32}, {"log_id": "00" * 16}, {"sig": "00" * 64}])
def test_an_anchor_of_something_else_is_not(changed: dict[str, object]) -> None:
    assert not is_signed(msgspec.structs.replace(ANCHOR, **changed), keys.public_key(RELAY))
    assert not is_signed(ANCHOR, keys.public_key(OTHER))
