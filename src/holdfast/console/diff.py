"""Two texts side by side, line by line: what stays, what goes, what comes."""

from difflib import SequenceMatcher
from itertools import zip_longest

import msgspec

# Lines of each text that are compared; further ones just stand side by side. Nothing else runs during a comparison.
LINES_MAX = 1_000


class Line(msgspec.Struct, frozen=True):
    """A line of each side; None where a side has none."""

    left: str | None
    right: str | None

    @property
    def is_same(self) -> bool:
        return self.left == self.right


def side_by_side(left: str, right: str) -> list[Line]:
    """The lines of two texts, changed lines beside each other."""
    before, after = left.splitlines(), right.splitlines()
    compared = SequenceMatcher(None, before[:LINES_MAX], after[:LINES_MAX], autojunk=False)
    found: list[Line] = []
    for _, start, end, other_start, other_end in compared.get_opcodes():
        pairs = zip_longest(before[start:end], after[other_start:other_end])
        found += [Line(one, other) for one, other in pairs]
    return found + [Line(one, other) for one, other in zip_longest(before[LINES_MAX:], after[LINES_MAX:])]
