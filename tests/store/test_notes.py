"""A note says what was written, or that it is not that any more."""

import msgspec
import pytest

from holdfast.store import notes


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pid: int
    names: tuple[str, ...]
    key: bytes = b"\x00\xff"


SAID = Holder(4711, ("ann", "böb"))


def test_a_note_comes_back_as_it_was_written() -> None:
    assert notes.read(notes.write(SAID), Holder) == SAID


def test_a_changed_note_is_none() -> None:
    with pytest.raises(msgspec.DecodeError, match="changed"):
        notes.read(notes.write(SAID).replace(b"4711", b"4712"), Holder)


def test_a_note_from_before_there_were_digests_is_taken() -> None:
    assert notes.read(msgspec.json.encode(SAID), Holder) == SAID


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"pid": "x", "names": []}', b'{"digest": 7}', b"\xff", b'{"x":' * 5_000])
def test_what_is_no_note_is_refused(raw: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        notes.read(raw, Holder)
