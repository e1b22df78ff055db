"""The keys of a home's member: the one in use, the next one until the relay has accepted it, and the earlier ones.

    member.key        the key in use
    member.key.next   a new key, and the send that asks the relay for it: written before that send leaves
    member-keys.json  the earlier keys, for as long as something sealed to them may still arrive

So after a crash at any moment of a rotation the home knows, or can find out, which key the relay has: if the send was
accepted, it is the next key; if it was refused, it is not. No key is deleted before its successor is on disk.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from holdfast.device.home import Damaged, Home, read_private
from holdfast.protocol import keys
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import DAY
from holdfast.store import faults, files, notes
from holdfast.store.world import Random

ARCHIVED_MAX = 8  # earlier keys that are kept at once; the next rotation is refused until one of them expires
KEPT_BEYOND_TTL_DAYS = 1  # after the relay has dropped the last message that was sealed to a key

NEXT_NAME = "member.key.next"
ARCHIVE_NAME = "member-keys.json"

_VERSION = 1

_log = structlog.get_logger(__name__)


class Next(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new key, the send that asks the relay for it, and for how long the present one is kept after that."""

    version: int = _VERSION
    secret: str  # nsec
    client_message_id: str
    kept_days: int


class Archived(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An earlier key of the member. Times are microseconds."""

    pubkey: str
    secret: str  # nsec
    rotated_out_at: int
    expires_at: int


class _Archive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int = _VERSION
    keys: tuple[Archived, ...] = ()


def archived(home: Home, now: int) -> tuple[Archived, ...]:
    """The earlier keys, the oldest first. An archive that cannot be read is put aside, not overwritten."""
    path = home.path / ARCHIVE_NAME
    try:
        found = notes.read(read_private(path), _Archive)
        _check(found)
    except faults.FileMissing:
        return ()
    except (msgspec.DecodeError, UnicodeDecodeError, Refused, ValueError) as error:
        aside = path.with_name(f"{ARCHIVE_NAME}.malformed-{now}")
        path.rename(aside)
        files.sync_directory(home.path)
        _log.error("key_archive_malformed", aside=str(aside), detail=str(error))
        return ()
    return found.keys


def secrets(found: Sequence[Archived]) -> dict[str, bytes]:
    """Secret keys by their public keys."""
    return {one.pubkey: keys.read_nsec(one.secret) for one in found}


def begin(home: Home, now: int, random: Random, client_message_id: str, ttl_days: int) -> bytes:
    """Make the next key and write it to disk, before the relay is asked; refused while too many earlier ones are kept."""
    if (home.path / NEXT_NAME).exists():
        raise Refused(Refusal.UNAVAILABLE, "an earlier rotation of this home's key has no answer yet")
    kept = [one for one in archived(home, now) if one.expires_at > now]
    if len(kept) >= ARCHIVED_MAX:
        until = min(one.expires_at for one in kept)
        raise Refused(Refusal.TOO_MANY_OLD_KEYS, f"{len(kept)} old keys are kept, the first until {until} microseconds")
    secret = random(keys.SECRET_BYTES)
    asked = Next(
        secret=keys.nsec(secret), client_message_id=client_message_id, kept_days=ttl_days + KEPT_BEYOND_TTL_DAYS
    )
    files.write_new(home.path / NEXT_NAME, notes.write(asked))
    return secret


def asked_for(home: Home) -> Next | None:
    """The next key, if one was asked for and is not in use yet."""
    path = home.path / NEXT_NAME
    try:
        return notes.read(read_private(path), Next)
    except faults.FileMissing:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(str(path), str(error)) from error


def finish(home: Home, now: int, secret: bytes, asked: Next) -> bytes:
    """Put the next key in use, after archiving the present one; returns its secret. Can be repeated after a crash."""
    following = keys.read_nsec(asked.secret)
    if following != secret:
        old = Archived(
            pubkey=keys.public_key(secret),
            secret=keys.nsec(secret),
            rotated_out_at=now,
            expires_at=now + asked.kept_days * DAY,
        )
        # Without a daemon nobody else drops expired keys, and the file must stay within its size limit.
        before = [one for one in archived(home, now) if one.pubkey != old.pubkey and one.expires_at > now]
        _write(home, (*before, old))
        files.replace(home.path / "member.key", keys.nsec(following).encode() + b"\n")
    _remove(home.path / NEXT_NAME)
    return following


def abandon(home: Home) -> None:
    """Delete the next key, because the relay has refused it."""
    _remove(home.path / NEXT_NAME)


def put_aside(home: Home, now: int) -> Path:
    """Rename the next key's file to keep it unused: the log has no send for it, but may have lost one. Returns the path."""
    aside = home.path / f"{NEXT_NAME}.unused-{now}"
    (home.path / NEXT_NAME).rename(aside)
    files.sync_directory(home.path)
    return aside


def drop_expired(home: Home, now: int) -> int:
    """Delete the earlier keys whose time is over; returns how many."""
    found = archived(home, now)
    kept = tuple(one for one in found if one.expires_at > now)
    if len(kept) == len(found):
        return 0
    if kept:
        _write(home, kept)
    else:
        _remove(home.path / ARCHIVE_NAME)
    return len(found) - len(kept)


def _write(home: Home, found: tuple[Archived, ...]) -> None:
    files.replace(home.path / ARCHIVE_NAME, notes.write(_Archive(keys=found)))


def _check(found: _Archive) -> None:
    """Refuse an archive in which a secret does not match its public key, or a key occurs twice."""
    if found.version != _VERSION:
        raise ValueError(f"version {found.version} is not known here")
    names = [one.pubkey for one in found.keys]
    if len(set(names)) != len(names):
        raise ValueError("a key stands in it twice")
    for one in found.keys:
        if keys.public_key(keys.read_nsec(one.secret)) != one.pubkey:
            raise ValueError(f"the secret of {one.pubkey} is another key's")


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    files.sync_directory(path.parent)
