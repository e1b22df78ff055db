"""File names that end with the SHA-256 of the content: a certificate over the names of a table's files thereby covers what is in them."""

import hashlib
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

_NAME = re.compile(r".+-[0-9a-f]{16}-([0-9a-f]{64})\.parquet")


def name_for(prefix: str, path: Path) -> str:
    """A new name for a file, with the digest of its content; unique even among files of the same content."""
    return f"{prefix}{secrets.token_hex(8)}-{digest_of(path)}.parquet"


def told_by(path: Path) -> str | None:
    """The digest in a file's name; None if the name has none."""
    found = _NAME.fullmatch(path.name)
    return None if found is None else found[1]


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_as_named(path: Path) -> bool:
    """Whether a file's content has the digest in its name; True if the name has none."""
    told = told_by(path)
    return told is None or digest_of(path) == told


def listing(root: Path, paths: Iterable[Path]) -> str:
    """A digest of the names of a table's files."""
    names = sorted(str(path.relative_to(root)) for path in paths)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
