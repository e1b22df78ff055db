"""ULIDs have one spelling, sort by the millisecond, and keep it."""

import pytest
import ulid as reference
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.protocol import ulid

TIMES = st.integers(min_value=0, max_value=(2**48 - 1) * 1000 + 999)
RANDOM = st.binary(min_size=10, max_size=10)


def test_the_specification_example_is_minted_from_its_parts() -> None:
    known = reference.ULID.from_str("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert ulid.mint(1_469_922_850_259_000, known.bytes[6:]) == "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@given(TIMES, RANDOM)
@example(0, bytes(10))
@example((2**48 - 1) * 1000 + 999, b"\xff" * 10)
def test_a_minted_ulid_keeps_its_millisecond_and_its_random_bytes(at: int, random: bytes) -> None:
    text = ulid.mint(at, random)
    assert text == str(reference.ULID((at // 1000).to_bytes(6, "big") + random))
    assert reference.ULID.from_str(text).bytes == (at // 1000).to_bytes(6, "big") + random


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


def test_the_last_time_and_the_greatest_bytes_make_the_greatest_ulid() -> None:
    assert ulid.mint((2**48 - 1) * 1000, b"\xff" * 10) == "7" + "Z" * 25
