"""The query parameters of requests. Unknown ones are refused, because a misspelt filter would silently filter nothing."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from holdfast.device import inbox, outbox
from holdfast.protocol.outbox import Status
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from holdfast.protocol.tags import INTEGER_MAX, shown

_Position = Annotated[int, Meta(ge=-1, le=INTEGER_MAX)]
_Limit = Annotated[int, Meta(ge=1, le=min(inbox.PAGE_ROWS_MAX, outbox.PAGE_ROWS_MAX))]

_TIME_DIGITS_MAX = 18  # of microseconds: some thirty thousand years, and it fits a database integer

Q = TypeVar("Q", bound=msgspec.Struct)


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place after which a page begins, and its size."""

    after: _Position = 0
    limit: _Limit = inbox.PAGE_ROWS


class InboxQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters for messages."""

    since: str | None = None
    topic: str | None = None
    sender: str | None = msgspec.field(name="from", default=None)
    unapplied: bool = False
    parked: bool = False


class OutboxQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters for rows of the outbox."""

    after: _Position = -1
    status: str | None = None
    to: str | None = None


class ScheduledQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters for scheduled sends; a page begins after the send with an id."""

    after: str = ""
    limit: _Limit = inbox.PAGE_ROWS
    to: str | None = None


def read(query: Mapping[str, str], shape: type[Q]) -> Q:
    """Read the parameters of a request; refuses unknown and invalid ones."""
    try:
        return msgspec.convert(dict(query), shape, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(Refusal.MALFORMED, f"query: {error}") from error


def read_time(text: str) -> int:
    """Read a time, in microseconds since 1970 or as ISO 8601, where UTC is the default zone; returns microseconds."""
    if text.isascii() and text.isdigit():
        if len(text) > _TIME_DIGITS_MAX:
            raise Refused(Refusal.MALFORMED, f"{shown(text)} is later than any time")
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * SECOND)
    except (ValueError, OverflowError) as error:  # applying the zone can leave the range of datetime
        raise Refused(Refusal.MALFORMED, f"{shown(text)} is not a time; write 2026-11-15T09:30:00Z") from error


def read_statuses(text: str | None) -> tuple[Status, ...]:
    """Read statuses with commas between them; no text means all."""
    try:
        return tuple(Status(name) for name in text.split(",")) if text else ()
    except ValueError as error:
        known = ", ".join(Status)
        raise Refused(Refusal.MALFORMED, f"status {shown(str(text))} is not one of {known}") from error
