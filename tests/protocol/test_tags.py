"""The checks under every codec: types, whole bytes, hex, each in one place."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import clock, fingerprint, payload, tags
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import IDENTIFIER, check_bytes, check_hex, check_range, check_type, is_hex


@given(st.text("0123456789abcdefABF g\n٣é", max_size=8) | st.binary(max_size=8).map(bytes.hex))
def test_hex_is_whole_bytes_in_lower_case(text: str) -> None:
    assert is_hex(text) is bool(re.fullmatch("(?:[0-9a-f]{2})*", text))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x", str),
        (b"x", bytes),
        (1, int),
        (True, bool),
        ((), tuple),
        (Refusal.MALFORMED, str),
        (Refusal.MALFORMED, Refusal),
    ],
)
def test_a_value_of_its_type_is_taken(value: object, expected: type) -> None:
    check_type(value, expected, "it")


@pytest.mark.parametrize(
    ("value", "expected"), [(b"x", str), ("x", bytes), (1.0, int), (True, int), (1, bool), ([], tuple), (None, str)]
)
def test_a_value_of_another_type_is_refused(value: object, expected: type) -> None:
    detail = f"it is of type {type(value).__name__}, not {expected.__name__}"
    with pytest.raises(Refused, match=detail) as refused:
        check_type(value, expected, "it")
    assert refused.value.refusal is Refusal.MALFORMED


WRONG: list[tuple[Any, tuple[Any, ...], str]] = [
    (check_range, (1.5, "n", 0), "n is of type float, not int"),
    (check_range, (-1, "n", 0), "n -1 is under 0"),
    (check_range, (tags.INTEGER_MAX + 1, "n", 0), "n 9007199254740992 is over 9007199254740991"),
    (check_bytes, ("x" * 4, "b", 4), "b is of type str, not bytes"),
    (check_bytes, (bytes(3), "b", 4), "b has 3 bytes, it must have 4"),
    (check_hex, (b"00", "h", 1), "h is of type bytes, not str"),
    (check_hex, ("0", "h", 1), "h has 1 characters, 2 hex digits are needed"),
    (check_hex, ("0G", "h", 1), "h '0G' is not lower-case hex"),
    (IDENTIFIER.check, (7, "name"), "name is of type int, not str"),
]


@pytest.mark.parametrize(("check", "arguments", "detail"), WRONG)
def test_each_check_says_what_is_wrong(check: Any, arguments: tuple[Any, ...], detail: str) -> None:
    with pytest.raises(Refused) as refused:
        check(*arguments)
    assert (refused.value.refusal, refused.value.detail) == (Refusal.MALFORMED, detail)


def test_the_limits_and_what_is_right_up_to_them_are_taken() -> None:
    check_range(tags.INTEGER_MAX, "n", 0)
    check_range(0, "n", 0)
    check_bytes(bytes(4), "b", 4)
    check_hex("0f", "h", 1)
    IDENTIFIER.check("x" * 64, "name")


def test_the_greatest_integer_has_one_name() -> None:
    assert tags.INTEGER_MAX == 2**53 - 1
    for module in (clock, payload, fingerprint):
        others = {name for name, value in vars(module).items() if value == tags.INTEGER_MAX} - {"INTEGER_MAX"}
        assert others == set()
