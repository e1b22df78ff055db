"""Faults: failures of a store's disk, file, server or process. Each says what happened, where, and what to do.

A fault is not a refusal: nobody decided it. After a `temporary` fault the same attempt may succeed later. After a `fatal`
one nobody knows what the disk holds, so the store takes nothing more until it is opened again.
"""

from typing import ClassVar, Self


class Fault(Exception):
    """A failure of the store's world: disk, file, server or process."""

    what: ClassVar[str]
    remedy: ClassVar[str]
    temporary: ClassVar[bool] = False
    fatal: ClassVar[bool] = False

    def __init__(self, where: str, detail: str = "") -> None:
        self.where = where
        self.detail = detail
        super().__init__(f"{where}: {self.what}{f' ({detail})' if detail else ''}. {self.remedy}")

    def again(self) -> Self:
        """A new fault equal to this one, for the next caller, with this one as its cause."""
        fault = type(self)(self.where, self.detail)
        fault.__cause__ = self
        return fault

    def __reduce__(self) -> tuple[type["Fault"], tuple[str, str]]:
        return type(self), (self.where, self.detail)  # so that it can be pickled for another process


class DirectoryMissing(Fault):
    what = "the directory for this file does not exist"
    remedy = "Correct the path; if a new file is wanted there, create the directory first."


class FileMissing(Fault):
    what = "there is no such file"
    remedy = "Correct the path."


class NameInvalid(Fault):
    what = "this name cannot be a file's"
    remedy = "Correct the path."


class FileThere(Fault):
    what = "a file of this name exists already; it was left as it is"
    remedy = "Choose another name, or move that file away."


class NoAccess(Fault):
    what = "this user may not read or write it, or it is read-only"
    remedy = "Give this user permission to read and write it (for a file, its directory too), or run as its owner."


class DiskFull(Fault):
    what = "the disk is full; nothing was written"
    remedy = "Free some space, then try again."
    temporary = True


class DiskFailed(Fault):
    what = "the disk failed, so what it now holds is unknown; nothing was acknowledged"
    remedy = "See to the disk, then open this file again and run `holdfast check` on it."
    fatal = True


class Corrupt(Fault):
    what = "the file is damaged"
    remedy = (
        "Do not write to it. Keep a copy, run `holdfast check` on it, and restore a backup. Of a home without one, "
        "`holdfast daemon recover` saves what can still be read."
    )
    fatal = True


class NotOurs(Fault):
    what = "this is not a Holdfast database of the expected kind; it was left as it is"
    remedy = "Correct the path."


class NewerStore(Fault):
    what = "a newer Holdfast wrote this file"
    remedy = "Upgrade Holdfast; an older one would not understand what is in it."


class Outdated(Fault):
    what = "an older Holdfast wrote this file, and it was opened for reading only"
    remedy = "Let the program that owns it open it once: that brings it up to date."


class StaleJournal(Fault):
    what = "beside it lies the journal of another file, which would be played into this one"
    remedy = "If a backup was put here by hand, remove the files ending in -wal and -shm; `holdfast log restore` does all of it."


class NotUnderstood(Fault):
    what = "the database does not understand us: its tables are not as we left them"
    remedy = "Run `holdfast check` on it, and restore a backup."


class Unexpected(Fault):
    what = "the database failed in a way we do not know"
    remedy = "Please report this, with the text in brackets."


class Busy(Fault):
    what = "another process has kept the file locked for too long"
    remedy = "Try again, or find out which process that is."
    temporary = True


class Forked(Fault):
    what = "this file was open when the process forked, and neither it nor the file can be used in the child"
    remedy = "Start the child with spawn instead of fork, or fork before the file is opened."


class Closed(Fault):
    what = "it was closed"
    remedy = "Open it again."


class Unanswered(Fault):
    what = "the work was interrupted, and whether it was written is unknown"
    remedy = "Ask again: a repeated request is recognised."


class ServerGone(Fault):
    what = "the database server cannot be reached, or ended the connection"
    remedy = "See whether it runs, and whether host, port, user, password and database are right. A relay that runs tries again."
    temporary = True


class NotLetIn(Fault):
    what = "the database server does not let this user do that, or has no such database"
    remedy = "Create user and database, or correct the URL; a password comes from PGPASSWORD or a password file."


class ServerUnfit(Fault):
    what = "this database server cannot be used"
    remedy = "Use another one, or change it as it says in brackets."


class NotDurable(Fault):
    what = "this database server may lose what it has said yes to"
    remedy = "Set fsync and full_page_writes to on, synchronous_commit to on or stricter, and start the server again."
