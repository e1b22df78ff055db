"""What a word is, for those who write the index and for those who ask it."""

import unicodedata

WORD = r"[\p{L}\p{N}\p{M}]+"
"""Letters, digits and the marks that belong to them, of any script; the same to Java and to DuckDB."""

PREFIX = "*"
"""At the end of a word that is asked for: any word that begins so."""


def composed(text: str) -> str:
    """A text in which a letter and its marks are one character, where there is one: keyboards differ in that, readers do not."""
    return unicodedata.normalize("NFC", text)
