"""Two texts side by side, line by line: what stays, what goes, what comes."""

from difflib import SequenceMatcher
from itertools import zip_longest

import msgspec

LINES_MAX = 2_000  # of each text that are compared; further ones are shown as they are


class Line(msgspec.Struct, frozen=True):
    """A line of each side; None where a side has none."""

    left: str | None
    right: str | None

    @property
    def is_same(self) -> bool:
        return self.left == self.right


def side_by_side(left: str, right: str) -> list[Line]:
    """The lines of both, each beside what took its place."""
    before, after = left.splitlines()[:LINES_MAX], right.splitlines()[:LINES_MAX]
    found: list[Line] = []
    for _, start, end, other_start, other_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        pairs = zip_longest(before[start:end], after[other_start:other_end])
        found += [Line(one, other) for one, other in pairs]
    return found
