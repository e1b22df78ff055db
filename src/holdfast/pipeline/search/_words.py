"""What a word is, for those who write the index and for those who ask it."""

WORD = r"[\p{L}\p{N}\p{M}]+"
"""Letters, digits and the marks that belong to them, of any script; the same to Java and to DuckDB."""

PREFIX = "*"
"""At the end of a word that is asked for: any word that begins so."""
