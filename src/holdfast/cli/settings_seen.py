"""Which settings are others than at the last start: told in the log, because a file that was damaged may still be a good one.

Digests of values are kept, and no value: some are secret.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from holdfast.store import files, notes

FILE_NAME = "settings-seen.json"
DIGEST_CHARACTERS = 16

_log = structlog.get_logger(__name__)


class Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every setting of a directory's programs at their last start, as a digest."""

    digests: dict[str, str] = {}


def tell(folder: Path, whose: str, found: msgspec.Struct) -> None:
    """Say which of a program's settings have changed since it was last started, if it was; and remember these."""
    path = folder / FILE_NAME
    before = _read(path)
    now = dict(_digests(f"{whose}.", found))
    changed = [name for name, digest in now.items() if before.get(name, digest) != digest]
    if changed:
        _log.warning("settings_changed", settings=changed)
    if before | now != before:
        files.replace(path, notes.write(Seen(before | now)))


def _read(path: Path) -> dict[str, str]:
    try:
        return notes.read(path.read_bytes(), Seen).digests
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _log.warning("settings_unknown_before", path=str(path), detail=str(error))
        return {}


def _digests(prefix: str, found: msgspec.Struct) -> Iterator[tuple[str, str]]:
    for name in found.__struct_fields__:
        value = getattr(found, name)
        if isinstance(value, msgspec.Struct):
            yield from _digests(f"{prefix}{name}.", value)
        else:
            yield prefix + name, hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:DIGEST_CHARACTERS]
