"""The keys of topics: one id for one key, grants that are what they say, senders that cannot be mistaken."""

import hashlib
import hmac

import pytest

from holdfast.protocol.keys import public_key
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.sealing import conversation_key, open_sealed, seal
from holdfast.protocol.topic_key import key_id, open_grant, sealing_key

ALICE, BOB = ((number).to_bytes(32, "big") for number in (1, 2))
KEY = bytes(range(32))
NONCE = b"\x09" * 32
CONVERSATION = conversation_key(ALICE, public_key(BOB))
NAMED = key_id("home", "news", 3, KEY)


def test_the_id_of_a_key_has_not_changed() -> None:
    def field(value: bytes) -> bytes:
        return len(value).to_bytes(4, "big") + value

    written = b"holdfast topic key 1\x00" + b"".join(map(field, (b"home", b"news", (3).to_bytes(8, "big"), KEY)))
    assert hashlib.sha256(written).hexdigest()[:32] == NAMED


def test_the_sealing_key_of_a_sender_has_not_changed() -> None:
    expected = hmac.new(KEY, b"holdfast topic 1\x00" + bytes.fromhex(public_key(ALICE)), hashlib.sha256).digest()
    assert sealing_key(KEY, public_key(ALICE)) == expected


def test_a_grant_opens_to_the_key_that_it_names() -> None:
    assert open_grant(CONVERSATION, seal(CONVERSATION, KEY, NONCE), "home", "news", 3, NAMED) == KEY


@pytest.mark.parametrize(
    ("mesh", "topic", "epoch", "key"),
    [
        ("work", "news", 3, KEY),
        ("home", "olds", 3, KEY),
        ("home", "news", 4, KEY),
        ("homen", "ews", 3, KEY),
        ("home", "news", 3, bytes(32)),
        ("home", "news", 3, KEY[:5]),
    ],
)
def test_a_grant_of_something_else_is_refused(mesh: str, topic: str, epoch: int, key: bytes) -> None:
    with pytest.raises(Refused) as refused:
        open_grant(CONVERSATION, seal(CONVERSATION, key, NONCE), mesh, topic, epoch, NAMED)
    assert refused.value.refusal is Refusal.UNREADABLE


def test_what_one_member_sealed_cannot_be_published_as_anothers() -> None:
    sealed = seal(sealing_key(KEY, public_key(ALICE)), b"the words of Alice", NONCE)
    assert open_sealed(sealing_key(KEY, public_key(ALICE)), sealed) == b"the words of Alice"
    with pytest.raises(Refused):
        open_sealed(sealing_key(KEY, public_key(BOB)), sealed)
