"""The page about worlds: its numbers are written into it by the commands that count them."""

from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def write(name: str, lines: Iterable[str]) -> None:
    """Put lines into their place in the page, instead of those that are there."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head, found, rest = PAGE.read_text().partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{PAGE} has no place for {name}")
    PAGE.write_text("\n".join((head + begin, "", *lines, "", end + tail)))
