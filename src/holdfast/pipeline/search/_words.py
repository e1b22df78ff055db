"""What a word is, for the index and for searches alike."""

import unicodedata

WORD = r"[\p{L}\p{N}\p{M}]+"
"""Letters, digits and the marks that belong to them, of any script; the same to Java and to DuckDB."""

PREFIX = "*"
"""At the end of a word in a search: any word that begins with it."""


def composed(text: str) -> str:
    """A text in its composed form (NFC): a letter and its marks are one character, however they were typed."""
    return unicodedata.normalize("NFC", text)
