"""Export tokens: one spelling, one consumer, one time, and only the relay's own signature opens them."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import keys
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.relay import token
from tests.people import secret_of

SECRET = secret_of("the relay")
PUBKEY = keys.public_key(SECRET)
NOW = 1_800_000_000_000_000
AUX = bytes(32)
TOKEN = token.mint(SECRET, "pipeline", NOW + 1, AUX)

NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._\-]{0,63}\Z")


def _refusal(text: str, now: int = NOW) -> Refusal:
    with pytest.raises(Refused) as caught:
        token.verify(text, PUBKEY, now)
    return caught.value.refusal


@given(NAMES, st.integers(1, 2**63 - 1), st.binary(min_size=32, max_size=32))
def test_a_token_names_its_consumer_until_the_moment_it_expires(name: str, expires_at: int, aux: bytes) -> None:
    text = token.mint(SECRET, name, expires_at, aux)
    assert token.verify(text, PUBKEY, expires_at - 1) == name
    assert _refusal(text, expires_at) is Refusal.TOKEN_EXPIRED


def test_a_token_is_made_as_described() -> None:
    text = TOKEN.removeprefix("hft1_")
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert (int.from_bytes(raw[:8], "big"), raw[72:]) == (NOW + 1, b"pipeline")
    signed = hashlib.sha256(b"holdfast export token 1\x00" + raw[:8] + raw[72:]).digest()
    assert keys.verify(PUBKEY, signed, raw[8:72])


def test_what_another_key_signed_is_invalid_though_it_has_expired() -> None:
    theirs = token.mint(secret_of("another relay"), "pipeline", NOW - 1, AUX)
    assert _refusal(theirs) is Refusal.TOKEN_INVALID


def test_a_signature_over_something_else_is_no_token() -> None:
    body = (NOW + 1).to_bytes(8, "big") + b"pipeline"
    signature = keys.sign(SECRET, hashlib.sha256(body).digest(), AUX)
    raw = body[:8] + signature + b"pipeline"
    assert _refusal("hft1_" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()) is Refusal.TOKEN_INVALID


@pytest.mark.parametrize("place", range(len(TOKEN)))
def test_a_token_with_another_character_in_one_place_is_invalid(place: int) -> None:
    for other in ("A" if TOKEN[place] != "A" else "B", "=", "é", " "):
        assert _refusal(TOKEN[:place] + other + TOKEN[place + 1 :]) is Refusal.TOKEN_INVALID


LAST = token.mint(SECRET, "ab", NOW + 1, AUX)  # 74 bytes: the last character has four bits that mean nothing

SPELLINGS = {
    "nothing": "",
    "only the prefix": "hft1_",
    "without its prefix": TOKEN.removeprefix("hft1_"),
    "with another prefix": "hft2_" + TOKEN.removeprefix("hft1_"),
    "with a prefix in capitals": "HFT1_" + TOKEN.removeprefix("hft1_"),
    "with padding": TOKEN + "=" * (-(len(TOKEN) - 5) % 4),
    "with more padding": TOKEN + "====",
    "with a line end": TOKEN + "\n",
    "with a space before": " " + TOKEN,
    "with a space inside": TOKEN[:20] + " " + TOKEN[20:],
    "with a character more": TOKEN + "A",
    "with a character less": TOKEN[:-1],
    "with spare bits set": LAST[:-1] + chr(ord(LAST[-1]) + 1),
    "twice": TOKEN + TOKEN,
    "in the other alphabet": TOKEN.replace("-", "+").replace("_", "/"),
    "with a zero byte": TOKEN + "\x00",
    "with a lone surrogate": TOKEN[:-1] + "\udc80",
    "without a name": "hft1_" + base64.urlsafe_b64encode(bytes(72)).decode(),
    "far too long": "hft1_" + "A" * 1_000_000,
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_token_in_another_spelling_is_invalid(name: str) -> None:
    assert _refusal(SPELLINGS[name]) is Refusal.TOKEN_INVALID


@given(st.text() | st.binary(max_size=200).map(lambda raw: base64.urlsafe_b64encode(raw).decode().rstrip("=")))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    assert _refusal(text) is Refusal.TOKEN_INVALID
    assert _refusal("hft1_" + text) is Refusal.TOKEN_INVALID


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "-x", "a/b", "a\n"])
def test_a_token_is_not_made_for_what_is_no_name(name: str) -> None:
    with pytest.raises(Refused, match="consumer"):
        token.mint(SECRET, name, NOW, AUX)


@pytest.mark.parametrize("expires_at", [-1, 2**63])
def test_a_token_is_not_made_for_what_is_no_time(expires_at: int) -> None:
    with pytest.raises(ValueError, match="cannot expire"):
        token.mint(SECRET, "pipeline", expires_at, AUX)
