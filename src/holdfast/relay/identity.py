"""The relay's identity: its own key, and the keys of its operators.

Both keys of a data directory are text files (nsec) that only their owner may read. They are made once, atomically, and
never overwritten.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.protocol import keys
from holdfast.protocol.refusal import Refused
from holdfast.store import faults, files
from holdfast.store.world import Random

DATABASE = "relay.db"
RELAY_KEY = "relay.key"
OPERATOR_KEY = "operator.key"
KEY_FILES = (RELAY_KEY, OPERATOR_KEY)
MOVED = "relay.db.moved"  # the database of a relay that now keeps everything on a server; see moving.py
BACKUP_NOTE = "backup.json"  # only in a backup; see copy.py
RESTORING = "restore.partial"  # without a database beside it: an unfinished restore; see copy.py

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_FILE_BYTES_MAX = 256


class KeyExposed(faults.Fault):
    what = "others than the owner may open this key, so it may be known to them"
    remedy = "Find out who could have read it. If nobody, chmod 600 it; otherwise replace it."


class KeyUnreadable(faults.Fault):
    what = "this is not a secret key"
    remedy = (
        "A key file has one line that starts with nsec1. Put the right file back; a new key would be another relay."
    )


class KeyUnknown(faults.Fault):
    what = "an operator in the settings is not a public key"
    remedy = "Write operators as npub1… or as 64 lower-case hex digits."


class IsBackup(faults.Fault):
    what = (
        "this directory is a backup, and a relay that ran on it would give positions of the original a second meaning"
    )
    remedy = "Restore it into another directory with `holdfast relay restore`, and run that."


class DatabaseMoved(faults.Fault):
    what = "the database of this directory was moved to a server"
    remedy = "Name it with --store, in relay.toml or in HOLDFAST_RELAY_STORE; a new file would be another relay under the same key."


class RestoreUnfinished(faults.Fault):
    what = "a restore into this directory was interrupted"
    remedy = "Run the same `holdfast relay restore` again."


class Identity(msgspec.Struct, frozen=True):
    """The relay's key pair, and the public keys of its operators in hex."""

    secret: bytes
    pubkey: str
    operators: tuple[str, ...]

    @classmethod
    def load(cls, data: Path, random: Random, operators: Sequence[str] = ()) -> "Identity":
        """The keys of a data directory, made if missing; `operators` are further ones from the settings."""
        _refuse_what_is_no_home(data)
        secret = _load_or_make(data / RELAY_KEY, random)
        operator = _load_or_make(data / OPERATOR_KEY, random)
        return cls(secret, keys.public_key(secret), _operators(operator, operators))

    @classmethod
    def read(cls, data: Path) -> "Identity":
        """The keys of a directory that a relay has run on; missing ones are not made."""
        secret, operator = (read_key(data / name) for name in KEY_FILES)
        return cls(secret, keys.public_key(secret), _operators(operator, ()))

    def __repr__(self) -> str:
        return f"Identity(pubkey={self.pubkey!r}, operators={self.operators!r})"  # without the secret, for logs


def read_key(path: Path) -> bytes:
    """The secret key in a file that only its owner can open."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # so that a pipe of that name does not block
    except OSError as error:
        raise files.meaning(error, path) from error
    try:
        _check_mode(os.fstat(descriptor).st_mode, path)
        content = os.read(descriptor, _FILE_BYTES_MAX)
    finally:
        os.close(descriptor)
    try:
        return keys.read_nsec(content.decode("ascii").removesuffix("\n"))
    except UnicodeDecodeError as error:
        raise KeyUnreadable(str(path), "it is not text") from error
    except Refused as refused:
        raise KeyUnreadable(str(path), refused.detail) from refused


def _check_mode(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        raise KeyUnreadable(str(path), "it is not a plain file")
    if mode & _OTHERS:
        raise KeyExposed(str(path), f"mode {stat.S_IMODE(mode):04o}")


def write_key(path: Path, secret: bytes) -> None:
    """Write a secret key into a new file."""
    files.write_new(path, keys.nsec(secret).encode() + b"\n")


def _load_or_make(path: Path, random: Random) -> bytes:
    with suppress(faults.FileMissing):
        return read_key(path)
    with suppress(faults.FileThere):  # another process was faster: its key is used
        write_key(path, random(keys.SECRET_BYTES))
    return read_key(path)


def _refuse_what_is_no_home(data: Path) -> None:
    if not data.is_dir():
        raise faults.DirectoryMissing(str(data / RELAY_KEY))
    if (data / BACKUP_NOTE).exists():
        raise IsBackup(str(data))
    if (data / RESTORING).exists() and not (data / DATABASE).exists():
        raise RestoreUnfinished(str(data))


def _operators(own: bytes, named: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((keys.public_key(own), *map(_public_key, named))))


def public_keys(named: Sequence[str]) -> frozenset[str]:
    """The public keys that the settings name, in hex."""
    return frozenset(map(_public_key, named))


def _public_key(text: str) -> str:
    if keys.is_public_key(text):
        return text
    try:
        return keys.read_npub(text)
    except Refused as refused:
        raise KeyUnknown(text, refused.detail) from refused
