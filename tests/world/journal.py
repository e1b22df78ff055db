"""What the world has seen and no file holds: what callers asked and were told, which faults fell, in what order everything was.

A file cannot say what was promised to somebody, so promises are written down here, by those to whom they were made. The
trace is a digest of every step, by which two runs of one seed are compared.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TextIO

from tests.world.hearing import Heard


@dataclass
class Asked:
    """A send that an application asked its daemon for; every answer that it got."""

    home: str
    client_message_id: str
    to: str
    body: str
    at: int
    statuses: list[int] = field(default_factory=list)
    accepted_at: int | None = None  # true time of the first yes
    refused_at: int | None = None  # and of the last refusal as a conflict
    expires_at: int | None = None  # when nobody wants it any more
    not_before: int | None = None  # when it is to leave
    cancelled_at: int | None = None  # true time at which its sender was told that it never will

    @property
    def is_accepted(self) -> bool:
        return self.accepted_at is not None


@dataclass(frozen=True)
class Requeued:
    """An operator asked for a row to be sent anew, and was not refused."""

    client_message_id: str
    event_id: str | None  # under which the row had been offered, when the operator saw it
    at: int  # true time of the question
    told_at: int  # and of the answer, or of its lack
    is_forced: bool


@dataclass
class Edited:
    """A version of a document that a home was told is kept."""

    home: str
    version: str
    at: int


@dataclass(frozen=True)
class Confirmed:
    """A message of which an application was told that it counts as applied."""

    home: str
    message: str
    at: int
    is_kept: bool  # on the disk, when that was said, so that no power cut could take it back


@dataclass(frozen=True)
class Hooked:
    """A hook event that an agent's command was told is kept."""

    home: str
    session_id: str
    event_type: str
    number: int  # in its session


@dataclass(frozen=True)
class Handled:
    """A handler began to act on an event."""

    home: str
    session_id: str
    event_id: str
    event_type: str


@dataclass
class Restored:
    """A machine that went back to a backup: everything between the two times may be gone."""

    machine: str
    made_at: int
    at: int


@dataclass
class Journal:
    """All that was seen."""

    asked: dict[tuple[str, str], Asked] = field(default_factory=dict)  # by home and id, the first that had it
    conflicts: list[Asked] = field(default_factory=list)  # sends under an id that was used for something else before
    requeued: dict[tuple[str, str], list[Requeued]] = field(default_factory=dict)  # by home and row
    edited: list[Edited] = field(default_factory=list)
    confirmed: list[Confirmed] = field(default_factory=list)
    hooked: list[Hooked] = field(default_factory=list)
    handled: list[Handled] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    restored: list[Restored] = field(default_factory=list)
    revoked: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)  # homes that are not started any more, and why
    unread: list[tuple[str, str]] = field(default_factory=list)  # by relay: what a home had read, and did not have
    mistakes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # rules that a database broke when its machine came up again

    def about(self, relay: str, homes: Collection[str]) -> "Journal":
        """What has to do with one relay and the homes of its mesh. Restorations and faults are everybody's."""
        return replace(
            self,
            asked={key: one for key, one in self.asked.items() if one.home in homes},
            conflicts=[one for one in self.conflicts if one.home in homes],
            edited=[one for one in self.edited if one.home in homes],
            confirmed=[one for one in self.confirmed if one.home in homes],
            hooked=[one for one in self.hooked if one.home in homes],
            handled=[one for one in self.handled if one.home in homes],
            heard=[one for one in self.heard if one.relay == relay],
            revoked={home: at for home, at in self.revoked.items() if home in homes},
            ended={home: why for home, why in self.ended.items() if home in homes},
            unread=[one for one in self.unread if one[0] == relay],
        )


class Trace:
    """A digest of everything that happens."""

    def __init__(self, shown: TextIO | None = None) -> None:
        self._digest = hashlib.sha256()
        self._shown = shown
        self.steps = 0

    def note(self, now_s: float, *what: object) -> None:
        line = f"{now_s:.6f} {' '.join(map(str, what))}\n"
        self._digest.update(line.encode())
        self.steps += 1
        if self._shown is not None:
            self._shown.write(line)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
