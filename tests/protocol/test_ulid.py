"""ULIDs have one spelling, sort by the millisecond, and keep it."""

import pytest
import ulid as reference
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.protocol import ulid
from holdfast.protocol.refusal import Refusal, Refused

TIMES = st.integers(min_value=0, max_value=(2**48 - 1) * 1000 + 999)
RANDOM = st.binary(min_size=10, max_size=10)
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
GREATEST = "7" + "Z" * 25


def test_the_specification_example_is_minted_from_its_parts() -> None:
    known = reference.ULID.from_str("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert ulid.mint(1_469_922_850_259_000, known.bytes[6:]) == "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    assert ulid.minted_at("01ARZ3NDEKTSV4RRFFQ69G5FAV") == 1_469_922_850_259_000


@given(TIMES, RANDOM)
@example(0, bytes(10))
@example((2**48 - 1) * 1000 + 999, b"\xff" * 10)
def test_a_minted_ulid_keeps_its_millisecond_and_its_random_bytes(at: int, random: bytes) -> None:
    text = ulid.mint(at, random)
    assert ulid.is_ulid(text)
    assert ulid.minted_at(text) == at - at % 1000
    assert ulid.parse(text) == (at // 1000).to_bytes(6, "big") + random


@given(st.lists(TIMES, min_size=2, max_size=2, unique_by=lambda at: at // 1000), RANDOM, RANDOM)
def test_ulids_of_different_milliseconds_sort_by_time(times: list[int], first: bytes, second: bytes) -> None:
    earlier, later = sorted(times)
    assert ulid.mint(earlier, first) < ulid.mint(later, second)


def test_within_one_millisecond_the_random_part_decides() -> None:
    assert ulid.mint(1_000, b"\xff" * 10) > ulid.mint(1_999, bytes(10))


@pytest.mark.parametrize("size", [0, 9, 11])
def test_minting_takes_exactly_ten_random_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="10 random bytes"):
        ulid.mint(0, bytes(size))


@pytest.mark.parametrize("at", [-1, 2**48 * 1000])
def test_a_time_outside_of_48_bits_is_not_minted(at: int) -> None:
    with pytest.raises(ValueError, match="cannot hold the time"):
        ulid.mint(at, bytes(10))


def test_the_greatest_ulid_is_one_and_the_next_is_none() -> None:
    assert ulid.parse(GREATEST) == b"\xff" * 16
    assert not ulid.is_ulid("8" + "0" * 25)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "26 characters"),
        (GREATEST[:-1], "26 characters"),
        (GREATEST + "Z", "26 characters"),
        (GREATEST.lower(), "upper-case"),
        ("7" + "z" * 25, "upper-case"),
        *((f"7{character}" + "0" * 24, "upper-case") for character in "ILOUilou -_\n\u0661é\x00"),
        ("8" + "0" * 25, "128 bits"),
        ("Z" * 26, "128 bits"),
    ],
)
def test_another_spelling_is_refused_with_its_fault(text: str, fault: str) -> None:
    assert not ulid.is_ulid(text)
    with pytest.raises(Refused, match=fault) as refused:
        ulid.parse(text)
    assert refused.value.refusal is Refusal.MALFORMED


@given(st.text("0178ABIJZaé", min_size=25, max_size=27) | st.text(ALPHABET, min_size=26, max_size=26))
def test_is_ulid_and_parse_agree_on_any_text(text: str) -> None:
    try:
        ulid.parse(text)
    except Refused:
        assert not ulid.is_ulid(text)
    else:
        assert ulid.is_ulid(text)
