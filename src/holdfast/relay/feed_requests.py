"""REQ subscriptions to the feed: the matching snapshots that are kept, newest first, then EOSE, then new ones that match.

Filters are served one after another, and a snapshot that one of them has sent is not sent again for the next.
"""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial

import msgspec
from msgspec import Raw

from holdfast.protocol.feed_filter import Wanted
from holdfast.relay import feed
from holdfast.relay.answer import ALL
from holdfast.relay.changes import Say, Subscription
from holdfast.relay.feed import CREATED_AT_MAX, Page, Row
from holdfast.relay.relay import Relay
from holdfast.store.engine import Transaction

MERGED_MAX = 32  # authors whose feeds are merged; for more, which only an open relay serves, all feeds are read


class _Served(msgspec.Struct, frozen=True):
    """A filter that was served; `last` is the last row if its limit was reached."""

    wanted: Wanted
    last: Row | None

    def has(self, row: Row) -> bool:
        """Whether this filter has already sent a row."""
        if not self.wanted.match(row.snapshot) or not (row.is_kept or self.wanted.ids is not None):
            return False
        return self.last is None or _place(row) <= _place(self.last)


class RequestSubscription(Subscription):
    """A REQ subscription to the feeds of some authors, or of all."""

    def __init__(self, relay: Relay, sub: str, filters: Sequence[Wanted], authors: Sequence[str], say: Say) -> None:
        super().__init__(relay, sub, authors, say)
        self._filters = [wanted for wanted in filters if not wanted.is_futile]
        self._authors = authors
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
        async for rows in self._pages(wanted, at):
            found = [row for row in rows if row.seq <= at and self._may_have(row) and wanted.match(row.snapshot)][:left]
            fresh = [row for row in found if not any(other.has(row) for other in served)]
            gone += [row for row in fresh if not row.is_kept]
            await self._send([row for row in fresh if row.is_kept])
            if left is not None and found:
                left, last = left - len(found), found[-1]
                if not left:
                    break
        for row in gone:
            await self._status(row)
        return last if left == 0 else None

    async def _pages(self, wanted: Wanted, at: int) -> AsyncIterator[Sequence[Row]]:
        if wanted.ids is not None:
            yield await self._relay.look(partial(feed.by_id, event_ids=wanted.ids))
            return
        if ALL in self._authors or len(self._authors) > MERGED_MAX:
            pages = self._newest(wanted, at, None)
        else:  # so that a client cannot make us read rows that it may not have or does not want
            pages = _merged([self._newest(wanted, at, author) for author in self._authors])
        async for rows in pages:
            yield rows

    async def _newest(self, wanted: Wanted, at: int, author: str | None) -> AsyncIterator[Sequence[Row]]:
        since, until = wanted.since or 0, CREATED_AT_MAX if wanted.until is None else wanted.until
        after: Row | None = None
        while True:
            read = partial(feed.newest, author=author, at=at, since=since, until=until, after=after)
            page = await self._relay.look(read)
            if page.last is None:
                return
            yield [item.row for item in page.items]
            after = page.last

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
        return self._may_have(row) and any(wanted.match(row.snapshot) for wanted in self._filters)

    def _may_have(self, row: Row) -> bool:
        return ALL in self._authors or row.author in self._authors


async def _merged(streams: Sequence[AsyncIterator[Sequence[Row]]]) -> AsyncIterator[Sequence[Row]]:
    """The rows of several authors merged into one order, with one page of each in memory."""
    heads: list[tuple[deque[Row], AsyncIterator[Sequence[Row]]]] = [(deque(), stream) for stream in streams]
    while heads:
        for rows, stream in heads:
            if not rows:
                async for page in stream:  # only the next page
                    rows.extend(page)
                    break
        heads = [(rows, stream) for rows, stream in heads if rows]
        merged: list[Row] = []
        while heads and all(rows for rows, _ in heads) and len(merged) < feed.PAGE_ROWS:
            merged.append(min((rows for rows, _ in heads), key=lambda rows: _place(rows[0])).popleft())
        if merged:
            yield merged


def _place(row: Row) -> tuple[int, bytes]:
    """A row's sort key within a filter's result: newest first, and within a second the smaller id first."""
    return -row.created_at, row.event_id
