"""What a word is, for the index and for searches alike."""

import unicodedata
from collections.abc import Iterator

WORD = r"[\p{L}\p{N}\p{M}]+"
"""Letters, digits and the marks that belong to them, of any script; the same to Java and to DuckDB."""

PREFIX = "*"
"""At the end of a word in a search: any word that begins with it."""


MARKS_MAX = 30
"""So many marks in a row are composed together, as in Unicode's Stream-Safe Text Format: to order more takes the square of their number."""


def composed(text: str) -> str:
    """A text in its composed form (NFC): a letter and its marks are one character, however they were typed."""
    if unicodedata.is_normalized("NFC", text):
        return text
    return "".join(unicodedata.normalize("NFC", piece) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces, cut where a letter has too many marks."""
    start = marks = 0
    for place, character in enumerate(text):
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks > MARKS_MAX:
            yield text[start:place]
            start, marks = place, 1
    yield text[start:]
