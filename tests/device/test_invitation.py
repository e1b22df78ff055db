"""The text of an invitation: what was written is read, and nothing else is."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.device.invitation import PREFIX, InvalidInvitation, Invitation, read, write

ONE = Invitation(relay="http://127.0.0.1:7447", mesh="01JCQ4E", mesh_name="Küche", secret=b"s" * 32)
NAMES = st.text(st.characters(categories=["L", "N"], min_codepoint=33), min_size=1, max_size=64)


@given(
    relay=st.from_regex(r"\Ahttps?://[a-z.]{1,50}(:[0-9]{1,5})?\Z"),
    name=NAMES,
    secret=st.binary(min_size=32, max_size=32),
)
def test_what_was_written_is_read(relay: str, name: str, secret: bytes) -> None:
    invitation = Invitation(relay=relay, mesh="01JCQ4E", mesh_name=name, secret=secret)
    assert read(write(invitation)) == invitation
    assert read(f"  {write(invitation)}\n") == invitation


def test_the_text_is_one_word_that_survives_a_shell_and_a_chat() -> None:
    assert set(write(ONE)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def test_every_changed_missing_or_added_character_is_noticed() -> None:
    text = write(ONE)
    for place in range(len(text)):
        for wrong in (
            text[:place] + ("B" if text[place] == "A" else "A") + text[place + 1 :],
            text[:place] + text[place + 1 :],
            text[:place] + "x" + text[place:],
            text[:place],
        ):
            with pytest.raises(InvalidInvitation):
                read(wrong)


def _packed(*fields: bytes) -> str:
    packed = b"".join(len(field).to_bytes(2, "big") + field for field in fields)
    return _checked(packed)


def _checked(packed: bytes) -> str:
    checksum = hashlib.sha256(b"holdfast invitation 1\x00" + packed).digest()[:4]
    return PREFIX + base64.urlsafe_b64encode(packed + checksum).decode().rstrip("=")


WRONG = {
    "nothing": ("", "there is nothing in it"),
    "something else": ("please", "starts with holdfast1."),
    "of another version": (write(ONE).replace("holdfast1", "holdfast2"), "newer Holdfast"),
    "the prefix alone": (PREFIX, "checksum"),
    "far too long": (PREFIX + "A" * 3000, "characters"),
    "padded": (write(ONE) + "=", "character|checksum"),
    "not base64": (PREFIX + "ä" * 8, "character"),
    "a field too few": (_packed(b"http://a", b"m", b"name"), "3 parts"),
    "a field too many": (_packed(b"http://a", b"m", b"name", b"s" * 32, b""), "5 parts"),
    "cut off inside": (_checked(b"\x00\x09http"), "cut off"),
    "a short secret": (_packed(b"http://a", b"m", b"name", b"s" * 31), "31 bytes"),
    "a mesh id that is none": (_packed(b"http://a", b"../m", b"name", b"s" * 32), "makes no sense"),
    "a name with a new line": (_packed(b"http://a", b"m", b"na\nme", b"s" * 32), "makes no sense"),
    "a name that is no text": (_packed(b"http://a", b"m", b"\xff", b"s" * 32), "makes no sense"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_invitation_is_refused_with_its_reason(name: str) -> None:
    text, reason = WRONG[name]
    with pytest.raises(InvalidInvitation, match=reason):
        read(text)


def test_a_log_does_not_learn_the_secret() -> None:
    assert "ssss" not in repr(ONE)
