"""Lists: a page at a time by position, never by number, so that the thousandth page costs what the first does.

Everything that a list shows is in its address: filters, order, where the page begins. An address that says something else
is refused, for a misspelt filter would be none.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from holdfast.protocol.refusal import Refusal, Refused

PAGE_ROWS = 50
TRAIL_PAGES_MAX = 40  # back to which an address remembers; from there one begins anew
TRAIL = "trail"

Position = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Where a page begins, as far as a store can count."""

Q = TypeVar("Q", bound=msgspec.Struct)
T = TypeVar("T")


def read(query: Mapping[str, str], shape: type[Q]) -> Q:
    """The parameters of a list; a field of a form that was left empty says nothing."""
    given = {name: value.strip() for name, value in query.items() if value.strip() and name != TRAIL}
    try:
        return msgspec.convert(given, shape, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(Refusal.MALFORMED, f"the address of this page: {error}") from error


class Page(Generic[T]):
    """Rows of a list, and the addresses of the pages before and after."""

    def __init__(
        self, path: str, query: msgspec.Struct, rows: Sequence[T], following: object | None, trail: str = ""
    ) -> None:
        """`trail` is where the pages before this one began, the first of all left out, as the last address had it."""
        self.path = path
        self.rows = rows
        self._query = {
            name: value for name, value in msgspec.to_builtins(query).items() if value not in (None, "", False)
        }
        self.is_first = "at" not in self._query
        self.here = self.address(at=self._query.get("at"), trail=trail)
        self.first = self.address(at=None)
        passed = _trail(trail)
        self.previous = None if self.is_first else self._back(passed)
        here = [] if self.is_first else [*passed, str(self._query["at"])]
        self.following = None if following is None else self.address(at=following, trail=_written_trail(here))

    def _back(self, passed: Sequence[str | None]) -> str | None:
        """The page before; none where the trail has been cut."""
        *earlier, last = passed or [""]
        return None if last is None else self.address(at=last, trail=_written_trail(earlier))

    def address(self, **changed: Any) -> str:
        """The address of this list with some parameters changed; it begins at the first page."""
        values = {**{name: value for name, value in self._query.items() if name != "at"}, **changed}
        written = {name: _written(value) for name, value in values.items() if value not in (None, "", False)}
        return f"{self.path}?{urlencode(written)}" if written else self.path


def cut(rows: Sequence[T], limit: int = PAGE_ROWS) -> tuple[Sequence[T], T | None]:
    """The rows of one page, and its last row if more follow; `rows` has one more than a page."""
    return (rows[:limit], rows[limit - 1]) if len(rows) > limit else (rows, None)


def _trail(written: str) -> list[str | None]:
    """Where earlier pages began, the latest last; None stands for pages that were too many to remember."""
    try:
        return msgspec.json.decode(written or "[]", type=list[str | None])[-TRAIL_PAGES_MAX:]
    except msgspec.MsgspecError as error:
        raise Refused(Refusal.MALFORMED, f"the address of this page: {TRAIL}: {error}") from error


def _written_trail(passed: Sequence[str | None]) -> str:
    kept = passed if len(passed) <= TRAIL_PAGES_MAX else [None, *passed[1 - TRAIL_PAGES_MAX :]]
    return msgspec.json.encode(kept).decode() if kept else ""


def _written(value: object) -> str:
    return "true" if value is True else str(value)
