"""REQ subscriptions to the feed: the matching snapshots that are kept, newest first, then EOSE, then new ones that match.

Filters are served one after another, and a snapshot that one of them has sent is not sent again for the next.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from heapq import heappop, heapreplace

import msgspec
from msgspec import Raw

from holdfast.protocol.feed_filter import Wanted
from holdfast.protocol.snapshot import Snapshot
from holdfast.relay import feed
from holdfast.relay.answer import ALL
from holdfast.relay.changes import Say, Subscription
from holdfast.relay.feed import CREATED_AT_MAX, Page, Row
from holdfast.relay.relay import Relay
from holdfast.store.engine import Transaction

_Place = tuple[int, bytes]

_FIRST: _Place = (-CREATED_AT_MAX - 1, b"")  # before every row
MERGED_MAX = 32  # authors whose feeds are merged; for more, which only an open relay serves, all feeds are read


class _Served(msgspec.Struct, frozen=True):
    """A filter that was served; `last` is the last row if its limit was reached."""

    wanted: Wanted
    last: Row | None

    def has(self, row: Row, said: Snapshot) -> bool:
        """Whether this filter has already sent a row."""
        if not self.wanted.match(said) or not (row.is_kept or self.wanted.ids is not None):
            return False
        return self.last is None or _place(row) <= _place(self.last)


class _Found(msgspec.Struct, frozen=True):
    """A row that matches a filter, and whether no filter before has sent it."""

    row: Row
    is_fresh: bool


class _Page(msgspec.Struct, frozen=True):
    """What matches a filter among some rows; the last of these rows, matching or not."""

    found: Sequence[_Found]
    last: Row


_Match = Callable[[Sequence[Row]], Sequence[_Found]]


class RequestSubscription(Subscription):
    """A REQ subscription to the feeds of some authors, or of all."""

    def __init__(self, relay: Relay, sub: str, filters: Sequence[Wanted], authors: Sequence[str], say: Say) -> None:
        super().__init__(relay, sub, authors, say)
        self._filters = [wanted for wanted in filters if not wanted.is_futile]
        self._authors = authors
        self._readable = frozenset(authors)
        self._only_author = authors[0] if len(authors) == 1 and authors[0] != ALL else None

    async def run(self) -> None:
        at = await self._relay.look(feed.head_seq)
        served: list[_Served] = []
        for wanted in self._filters:
            if wanted.limit != 0:
                served.append(_Served(wanted, await self._send_kept(wanted, at, served)))
        await self._say(("EOSE", self.sub))
        await self._follow(at)

    async def _send_kept(self, wanted: Wanted, at: int, served: Sequence[_Served]) -> Row | None:
        """Send a filter's matching snapshots, then the status of compacted ones; returns the last row if `limit` was reached."""
        left, last, gone = wanted.limit, None, []
        async for found in self._pages(wanted, at, served):
            within = found[:left]
            fresh = [one.row for one in within if one.is_fresh]
            gone += [row for row in fresh if not row.is_kept]
            await self._send([row for row in fresh if row.is_kept])
            if left is not None and within:
                left, last = left - len(within), within[-1].row
                if not left:
                    break
        for row in gone:
            await self._status(row)
        return last if left == 0 else None

    async def _pages(self, wanted: Wanted, at: int, served: Sequence[_Served]) -> AsyncIterator[Sequence[_Found]]:
        match = partial(self._found, wanted=wanted, at=at, served=served)
        if wanted.ids is not None:
            event_ids = wanted.ids
            yield await self._relay.look(lambda tx: match(feed.by_id(tx, event_ids)))
        elif ALL in self._readable or len(self._readable) > MERGED_MAX:
            async for page in self._newest(wanted, at, None, match):
                yield page.found
        else:  # so that a client cannot make us read rows that it may not have or does not want
            async for found in _merged([self._newest(wanted, at, author, match) for author in self._authors]):
                yield found

    async def _newest(self, wanted: Wanted, at: int, author: str | None, match: _Match) -> AsyncIterator[_Page]:
        since, until = wanted.since or 0, CREATED_AT_MAX if wanted.until is None else wanted.until

        def read(transaction: Transaction, after: Row | None) -> _Page | None:
            rows = feed.newest(transaction, author, at, since, until, after)
            return _Page(match(rows), rows[-1]) if rows else None

        page = await self._relay.look(partial(read, after=None))
        while page is not None:
            yield page
            page = await self._relay.look(partial(read, after=page.last))

    def _found(self, rows: Sequence[Row], wanted: Wanted, at: int, served: Sequence[_Served]) -> list[_Found]:
        """Those of the rows that a filter matches. Part of the reading, because on the event loop everybody would wait for it."""
        found = []
        for row in rows:
            said = row.snapshot
            if row.seq <= at and self._may_have(row) and wanted.match(said):
                found.append(_Found(row, not any(other.has(row, said) for other in served)))
        return found

    async def _send(self, rows: Sequence[Row]) -> None:
        while rows:
            fit = feed.fitting(rows)
            events = await self._relay.look(partial(feed.payloads, rows=fit))
            for row in fit:
                event = events.get(row.seq)
                if event is None:
                    await self._status(row)  # compacted since the rows were read
                else:
                    await self._say(("EVENT", self.sub, Raw(event)))
            rows = rows[len(fit) :]

    async def _follow(self, after: int) -> None:
        while True:
            self._news.clear()
            page, until = await self._relay.look(partial(self._news_page, after=after))
            for item in page.items:
                if item.event is not None:
                    await self._say(("EVENT", self.sub, Raw(item.event)))
            after = until if page.last is None else page.last.seq
            if page.last is None:
                await self._news.wait()

    def _news_page(self, transaction: Transaction, after: int) -> tuple[Page, int]:
        until = feed.head_seq(transaction)
        return feed.changes_of(transaction, self._only_author, after, until, self._is_wanted), until

    def _is_wanted(self, row: Row) -> bool:
        said = row.snapshot
        return self._may_have(row) and any(wanted.match(said) for wanted in self._filters)

    def _may_have(self, row: Row) -> bool:
        return ALL in self._readable or row.author in self._readable


async def _merged(streams: Sequence[AsyncIterator[_Page]]) -> AsyncIterator[Sequence[_Found]]:
    """What was found of several authors merged into one order, with one page of each in memory.

    A page is read when the order comes to its place, even if nothing in the page before it matched.
    """
    ahead: list[deque[_Found]] = [deque() for _ in streams]
    ends = [_FIRST] * len(streams)  # the last rows that were looked at
    nexts = [(_FIRST, number) for number in range(len(streams))]  # a heap: where each author's rows go on
    merged: list[_Found] = []
    while nexts:
        _, number = nexts[0]
        if merged and (not ahead[number] or len(merged) == feed.PAGE_ROWS):
            yield merged
            merged = []
        if ahead[number]:
            merged.append(ahead[number].popleft())
        else:
            page = await anext(streams[number], None)
            if page is None:
                heappop(nexts)
                continue
            ahead[number].extend(page.found)
            ends[number] = _place(page.last)
        heapreplace(nexts, (_place(ahead[number][0].row) if ahead[number] else ends[number], number))
    if merged:
        yield merged


def _place(row: Row) -> _Place:
    """A row's sort key within a filter's result: newest first, and within a second the smaller id first."""
    return -row.created_at, row.event_id
