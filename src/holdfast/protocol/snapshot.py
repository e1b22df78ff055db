"""Causal snapshots: reading an event of the sync range, and comparing it with the document's known snapshots.

A document is an author and a name `d`. Its snapshots carry vector clocks, and a newer one that knew of an older one
dominates it. A snapshot that no other dominates is current; several current ones are a conflict that only the author can
resolve. A snapshot that is not in the one canonical form is refused, never corrected.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec
import rfc8785

from holdfast.protocol import clock
from holdfast.protocol.clock import VectorClock, dominates
from holdfast.protocol.event import Event
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import read_choice

SYNC_KINDS = range(40_000, 50_000)
DOCUMENT_CHARACTERS_MAX = 512  # of `d`, and of `c`


class Operation(StrEnum):
    """What a snapshot does to its document."""

    PUT = "put"
    DELETE = "del"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a snapshot that the relay reads; its content is sealed."""

    author: str
    kind: int
    d: str
    o: Operation
    c: str | None
    clock: VectorClock
    created_at: int  # seconds, as the event has it
    event_id: str


class Standing(StrEnum):
    """Whether the relay already had a dominating snapshot when this one came."""

    CURRENT = "current"
    DOMINATED = "dominated"


def from_event(event: Event) -> Snapshot:
    """The snapshot in an event; its id and signature are checked elsewhere."""
    if event.kind not in SYNC_KINDS:
        raise Refused(Refusal.KIND_UNSUPPORTED, f"kind {event.kind} is not of the sync range")
    return Snapshot(
        author=event.pubkey,
        kind=event.kind,
        d=_named(event, "d"),
        o=read_choice(Operation, _one(event, "o"), "tag 'o'"),
        c=_named(event, "c") if _values(event, "c") else None,
        clock=clock.from_tags(event.tags),
        created_at=event.created_at,
        event_id=event.id,
    )


def detail(snapshot: Snapshot) -> bytes:
    """The detail of a snapshot's history entry: its causal tags, in canonical JSON."""
    return rfc8785.dumps(
        {
            "author": snapshot.author,
            "c": snapshot.c,
            "created_at": snapshot.created_at,
            "d": snapshot.d,
            "kind": snapshot.kind,
            "o": snapshot.o.value,
            "vc": [list(entry) for entry in snapshot.clock.entries],
        }
    )


def standing(arriving: VectorClock, current: Iterable[VectorClock]) -> Standing:
    """The standing of an arriving snapshot: whether a current one dominates it."""
    is_dominated = any(dominates(known, arriving) for known in current)
    return Standing.DOMINATED if is_dominated else Standing.CURRENT


def superseded(arriving: VectorClock, current: Sequence[tuple[int, VectorClock]]) -> list[int]:
    """The positions of the current snapshots that the arriving one dominates."""
    return [seq for seq, known in current if dominates(arriving, known)]


def _named(event: Event, name: str) -> str:
    value = _one(event, name)
    if not value:
        raise Refused(Refusal.MALFORMED, f"tag '{name}' is empty")
    if "\0" in value:  # PostgreSQL cannot store it in a text
        raise Refused(Refusal.MALFORMED, f"tag '{name}' has a NUL character")
    if len(value) > DOCUMENT_CHARACTERS_MAX:
        raise Refused(
            Refusal.MALFORMED, f"tag '{name}' has {len(value)} characters, at most {DOCUMENT_CHARACTERS_MAX} allowed"
        )
    return value


def _one(event: Event, name: str) -> str:
    found = _values(event, name)
    if len(found) != 1:
        raise Refused(Refusal.MALFORMED, f"tag '{name}' stands {len(found)} times, it must stand once")
    if len(found[0]) != 2:
        raise Refused(Refusal.MALFORMED, f"tag '{name}' has {len(found[0])} elements, it must have 2")
    return found[0][1]


def _values(event: Event, name: str) -> list[tuple[str, ...]]:
    return [tag for tag in event.tags if tag[0] == name]
