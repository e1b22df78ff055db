"""From the spool into the database: what receivers have said, in that order, with the place up to which it was read.

Rows and place are one transaction, so nothing is taken in twice by one database, and two workers on it do not disturb each
other. A file that has grown loses its name: receivers that were about to write into it notice, and the worker reads it to
its end before it looks at the next one. Then it is removed.
"""

import os
from pathlib import Path
from string import hexdigits

import msgspec
import structlog

from holdfast.hook import outbox, spool, tail
from holdfast.hook.layout import SPOOL_NAME
from holdfast.hook.store import Store
from holdfast.hook.tail import Mark
from holdfast.store import files
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements

PIECE_BYTES = 1_048_576  # read and stored together
ROTATE_BYTES = 262_144  # of a spool that is taken in; then its name goes to another one
DIGEST_CHARACTERS = 16  # of the last line, in the name of a file that has lost its own

_SQL = Statements(__package__, "intake.sql")
_log = structlog.get_logger(__name__)


class Place(Mark, frozen=True):
    """How far the spool was read."""

    finished: str = ""  # the file of which everything is in the database


class Taken(msgspec.Struct, frozen=True):
    """The result of one step."""

    place: Place
    lines: int = 0
    has_more: bool = False  # look again


class Intake:
    """Stores what is in the spool."""

    def __init__(self, home: Path, store: Store) -> None:
        self._home = home
        self._store = store
        self._seen: tuple[int, int] | None = None  # which file was read to which end, when it was last looked at

    @property
    def is_needed(self) -> bool:
        """Whether the spool may hold something new; does not ask the database."""
        return self._seen is None or self._seen != _state(self._home / SPOOL_NAME) or bool(nameless(self._home))

    @property
    def waiting_bytes(self) -> int:
        """How many bytes of the spool are not in the database; an estimate that does not ask it."""
        inode, size = _state(self._home / SPOOL_NAME)
        return size - self._seen[1] if self._seen is not None and self._seen[0] == inode else size

    async def take_in(self) -> int:
        """Store everything in the spool; returns the number of lines."""
        number, has_more = 0, True
        while has_more:
            taken = await self._store.do_soon(self._take)
            number += taken.lines
            has_more = taken.has_more
            self._clear(taken.place.finished)
            if not has_more:
                state = _state(self._home / SPOOL_NAME)
                self._seen = (state[0], taken.place.end) if state[1] >= taken.place.end else None
        return number

    def _take(self, transaction: Transaction) -> Taken:
        """Store one piece of the spool, or do one step of the change to the next file."""
        try:
            return self._step(transaction, place(transaction))
        except OSError as error:
            raise files.meaning(error, self._home / SPOOL_NAME) from error

    def _step(self, transaction: Transaction, before: Place) -> Taken:
        old = [path for path in nameless(self._home) if path.name != before.finished]
        path = old[0] if old else self._home / SPOOL_NAME
        content, start, is_whole = tail.read(path, before, PIECE_BYTES)
        is_endless = not is_whole and b"\n" not in content.strip(b"\n")  # no end of it in all that may be one line
        if not is_endless and not (old and is_whole):
            content = content[: content.rfind(b"\n") + 1]  # the rest of the last line may be on its way
        if content.strip(b"\n"):
            mark = msgspec.structs.asdict(tail.behind(content, start))
            after = msgspec.structs.replace(before, **mark)
            return Taken(_kept(transaction, after), self._stored(transaction, content), has_more=True)
        if old:
            return Taken(_kept(transaction, Place(finished=path.name)), has_more=True)
        if before.end >= ROTATE_BYTES and start == before.end:
            path.rename(path.with_name(f"{SPOOL_NAME}.{before.line[:DIGEST_CHARACTERS]}"))
            return Taken(before, has_more=True)
        return Taken(before if start == before.end else _kept(transaction, Place(finished=before.finished)))

    def _stored(self, transaction: Transaction, content: bytes) -> int:
        records, damaged = spool.parse(content)
        rejected = outbox.take_in(transaction, records)
        if rejected or damaged:
            _log.error("lines of the spool cannot be read", rejected=len(rejected), damaged=len(damaged))
            spool.put_aside(str(self._home), rejected, damaged)  # before it is read for the last time
        return len(records)

    def _clear(self, finished: str) -> None:
        """Remove a spool file that is completely in the database."""
        if not finished:
            return
        try:
            (self._home / finished).unlink(missing_ok=True)
        except OSError as error:
            raise files.meaning(error, self._home / finished) from error


def place(transaction: Transaction) -> Place:
    """The stored place up to which the spool was read."""
    return Place(*transaction.rows(_SQL["place"])[0])


def waiting_bytes(home: Path, known: Place) -> int:
    """How many bytes of the spool are not in the database."""
    path = home / SPOOL_NAME
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_size - tail.found(file.fileno(), known)


def _kept(transaction: Transaction, after: Place) -> Place:
    transaction.run(_SQL["keep_place"], msgspec.structs.asdict(after))
    return after


def _state(path: Path) -> tuple[int, int]:
    """The inode and the size of the spool; zeros if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_size


def nameless(home: Path) -> list[Path]:
    """Earlier spool files, which were renamed and are not read to their end."""
    found = home.glob(f"{SPOOL_NAME}.*")  # somebody's own copy, hooks.spool.bak say, is not one of them
    return sorted(path for path in found if set(path.name.removeprefix(f"{SPOOL_NAME}.")) <= set(hexdigits))
