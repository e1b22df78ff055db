"""Filters of the feed: the one of CHANGES, and those of REQ. Each fault has its own refusal.

A filter that cannot be followed exactly is refused, never approximated: the client would take what it gets for all there
is.
"""

from enum import StrEnum
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from holdfast.protocol.event import DETAIL_CHARACTERS_MAX, KIND_MAX
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.snapshot import SYNC_KINDS, Snapshot
from holdfast.protocol.tags import is_hex, shown

VALUES_MAX = 1_000  # in one list of a filter
FILTERS_MAX = 10  # in one REQ
SEQ_MAX = 2**53 - 1  # the largest integer that every JSON reader holds exactly

_Seq = Annotated[int, Meta(ge=0, le=SEQ_MAX)]
_Kinds = Annotated[tuple[Annotated[int, Meta(ge=0, le=KIND_MAX)], ...], Meta(max_length=VALUES_MAX)]
_Text = Annotated[str, Meta(pattern=r"\A[^\x00]*\Z")]  # no tag has a NUL, and PostgreSQL cannot store one in a text
_Texts = Annotated[tuple[_Text, ...], Meta(max_length=VALUES_MAX)]

T = TypeVar("T")


class Mode(StrEnum):
    """What CHANGES returns: the current state (bootstrap), or the changes after a position (tail)."""

    BOOTSTRAP = "bootstrap"
    TAIL = "tail"


class Tags(msgspec.Struct, frozen=True, kw_only=True):
    """Which documents, operations and classes; None is any. Sets, here and below: every row is looked up in them."""

    d: frozenset[str] | None = None
    o: frozenset[str] | None = None
    c: frozenset[str] | None = None

    def match(self, d: str, o: str, c: str | None) -> bool:
        wanted = ((self.d, d), (self.o, o), (self.c, c))
        return all(values is None or value in values for values, value in wanted)


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of one CHANGES subscription."""

    mode: Mode
    kinds: frozenset[int]
    author: str
    tags: Tags = Tags()
    since: int = 0
    until_seq: int | None = None
    limit: int | None = None
    live: bool = False

    def match(self, kind: int, d: str, o: str, c: str | None) -> bool:
        return kind in self.kinds and self.tags.match(d, o, c)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One filter of REQ; None is any. Times are seconds, as events have them."""

    ids: frozenset[str] | None = None
    authors: frozenset[str] | None = None
    kinds: frozenset[int] | None = None
    tags: Tags = Tags()
    since: int | None = None
    until: int | None = None
    limit: int | None = None

    @property
    def is_futile(self) -> bool:
        """Whether nothing can ever match: a list is empty, or names only kinds that no snapshot has."""
        lists = (self.ids, self.authors, self.kinds, self.tags.d, self.tags.o, self.tags.c)
        has_kind = self.kinds is None or any(kind in SYNC_KINDS for kind in self.kinds)
        return not has_kind or any(values is not None and not values for values in lists)

    def match(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot matches, apart from `limit`."""
        return (
            (self.ids is None or snapshot.event_id in self.ids)
            and (self.authors is None or snapshot.author in self.authors)
            and (self.kinds is None or snapshot.kind in self.kinds)
            and (self.since is None or snapshot.created_at >= self.since)
            and (self.until is None or snapshot.created_at <= self.until)
            and self.tags.match(snapshot.d, snapshot.o.value, snapshot.c)
        )


class _Changes(msgspec.Struct, forbid_unknown_fields=True, rename={"d": "#d", "o": "#o", "c": "#c"}):
    mode: str | None = None
    kinds: _Kinds | None = None
    authors: _Texts | None = None
    d: _Texts | None = None
    o: _Texts | None = None
    c: _Texts | None = None
    since: _Seq | None = None
    until_seq: _Seq | None = None
    limit: _Seq | None = None
    live: bool = False


class _Wanted(msgspec.Struct, forbid_unknown_fields=True, rename={"d": "#d", "o": "#o", "c": "#c"}):
    ids: _Texts | None = None
    authors: _Texts | None = None
    kinds: _Kinds | None = None
    d: _Texts | None = None
    o: _Texts | None = None
    c: _Texts | None = None
    since: _Seq | None = None
    until: _Seq | None = None
    limit: _Seq | None = None


def read_changes(raw: bytes) -> Changes:
    """The filter of CHANGES in bytes from anybody."""
    found = _decoded(raw, _Changes)
    mode = _mode(found.mode)
    if mode is Mode.BOOTSTRAP:
        _check_bootstrap(found)
    elif found.limit is not None and found.live:
        raise Refused(Refusal.LIMIT_WITH_LIVE, "filter: limit with live")
    return Changes(
        mode=mode,
        kinds=_sync_kinds(found.kinds),
        author=_one_author(found.authors),
        tags=_tags(found),
        since=found.since or 0,
        until_seq=found.until_seq,
        limit=found.limit,
        live=found.live,
    )


def read_wanted(raw: bytes) -> Wanted:
    """One filter of REQ in bytes from anybody."""
    found = _decoded(raw, _Wanted)
    for what, values in (("ids", found.ids), ("authors", found.authors)):
        for value in values or ():
            _check_hex(value, what)
    return Wanted(
        ids=_set(found.ids),
        authors=_set(found.authors),
        kinds=_set(found.kinds),
        tags=_tags(found),
        since=found.since,
        until=found.until,
        limit=found.limit,
    )


def _tags(found: _Changes | _Wanted) -> Tags:
    return Tags(d=_set(found.d), o=_set(found.o), c=_set(found.c))


def _set(values: tuple[T, ...] | None) -> frozenset[T] | None:
    return None if values is None else frozenset(values)


def _mode(text: str | None) -> Mode:
    if text is None:
        raise Refused(Refusal.MODE_REQUIRED, "filter: no mode")
    try:
        return Mode(text)
    except ValueError:
        raise Refused(Refusal.MODE_REQUIRED, f"filter: mode {shown(text)}") from None


def _check_bootstrap(found: _Changes) -> None:
    if found.limit is not None:
        raise Refused(Refusal.LIMIT_WITH_BOOTSTRAP, "filter: limit with bootstrap")
    if found.until_seq is not None:
        raise Refused(Refusal.MALFORMED, "filter: until_seq with bootstrap, which is of the moment it is asked for")


def _sync_kinds(kinds: tuple[int, ...] | None) -> frozenset[int]:
    if not kinds:
        raise Refused(Refusal.KINDS_REQUIRED, "filter: no kinds")
    for kind in kinds:
        if kind not in SYNC_KINDS:
            raise Refused(Refusal.KIND_OUT_OF_RANGE, f"filter: kind {kind}")
    return frozenset(kinds)


def _one_author(authors: tuple[str, ...] | None) -> str:
    if authors is None or len(authors) != 1:
        raise Refused(Refusal.ONE_AUTHOR_REQUIRED, f"filter: {len(authors or ())} authors")
    _check_hex(authors[0], "authors")
    return authors[0]


def _check_hex(text: str, what: str) -> None:
    if len(text) != 64 or not is_hex(text):
        raise Refused(Refusal.MALFORMED, f"filter: {what} has {shown(text)}, which is not 32 bytes in lower-case hex")


def _decoded(raw: bytes, shape: type[Any]) -> Any:
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(Refusal.MALFORMED, f"filter: {ascii(str(error))[1:-1][:DETAIL_CHARACTERS_MAX]}") from error
