"""A list's pages: where each leads to."""

from urllib.parse import parse_qs, urlsplit

import msgspec

from holdfast.console.listing import TRAIL, TRAIL_PAGES_MAX, Page


class Asked(msgspec.Struct):
    order: str = ""
    at: str = ""


def follow(address: str, following: str | None) -> Page[int]:
    """The page at an address."""
    asked = {name: one for name, (one,) in parse_qs(urlsplit(address).query).items()}
    trail = asked.pop(TRAIL, "")
    return Page("/list", msgspec.convert(asked, Asked), [], following, trail)


def test_a_trail_that_grew_too_long_ends_where_it_was_cut() -> None:
    page, number = follow("/list?order=oldest", "0"), 0
    while number < 2 * TRAIL_PAGES_MAX:
        assert page.following is not None
        number += 1
        page = follow(page.following, str(number))
        assert len(page.here) < 50 * TRAIL_PAGES_MAX
    back = 0
    while page.previous is not None:
        page, back = follow(page.previous, "next"), back + 1
    assert back == TRAIL_PAGES_MAX - 1
    assert not page.is_first  # it is said how to begin anew, and nothing is called the page before that is none


def test_positions_may_be_any_text() -> None:
    page = follow("/list?at=%22%2C%5D%26", "null")
    assert page.following is not None
    assert follow(page.following, None).previous == page.here
