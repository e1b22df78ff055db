"""Subscriptions to the feed: their common part, and CHANGES, which sends the current state or the changes after a position.

One pump reads the rows after the last position it has covered, in the order of the history, old and new ones alike. So
nothing can be lost, repeated or reordered between replay and live. EOSE names the position up to which everything that was
asked for has been sent.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from msgspec import Raw

from holdfast.protocol.feed_filter import Changes, Mode
from holdfast.protocol.refusal import Refusal, Refused, ok_message
from holdfast.protocol.schedule import SECOND
from holdfast.relay import feed
from holdfast.relay.answer import ALL, EVERYBODY, FEED
from holdfast.relay.feed import Item, Page, Row
from holdfast.relay.relay import Relay
from holdfast.store.engine import Transaction

Say = Callable[[tuple[Any, ...]], Awaitable[None]]

COMPACTED = "payload_compacted"


class Subscription(ABC):
    """A feed subscription of one connection, until it is cancelled or complete."""

    bound: int | None = None  # the position of the history that it waits for, whoever moves it there

    def __init__(self, relay: Relay, sub: str, authors: Sequence[str], say: Say) -> None:
        self.sub = sub
        self.keys = tuple((FEED, author) for author in authors)
        self._relay = relay
        self._say = say
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Tell the subscription to look for new snapshots."""
        self._news.set()

    @abstractmethod
    async def run(self) -> None:
        """Send what the subscription asks for; raises `Refused` if that is not possible."""

    async def _status(self, row: Row) -> None:
        """Tell the reader of a snapshot whose payload was compacted."""
        about = {"id": row.event_id.hex(), "status": COMPACTED, "seq": row.seq}
        await self._say(("EVENT-STATUS", self.sub, about))


class ChangesSubscription(Subscription):
    """`CHANGES`: the state of an author's documents, or their changes."""

    def __init__(self, relay: Relay, sub: str, wanted: Changes, say: Say) -> None:
        super().__init__(relay, sub, (wanted.author,), say)
        self.bound = wanted.until_seq
        self._wanted = wanted
        self._sent = 0

    async def run(self) -> None:
        covered = await (self._bootstrap() if self._wanted.mode is Mode.BOOTSTRAP else self._replay())
        await self._tell("EOSE", covered)
        if self._wanted.live:
            await self._follow(covered)

    async def _bootstrap(self) -> int:
        """Send the snapshots that are current at this position; later accepts do not change that set."""
        author = self._wanted.author
        empty_at = await self._relay.look(partial(feed.empty_at, author=author))
        if empty_at is not None:  # nothing has to be held back, so that strangers cannot ask the writer for it
            await self._tell("STATUS", {"mode": Mode.BOOTSTRAP.value, "snapshot_seq": empty_at})
            return empty_at
        with self._held() as (key, began):
            at = await self._relay.begin_bootstrap(key, author, began)
            await self._tell("STATUS", {"mode": Mode.BOOTSTRAP.value, "snapshot_seq": at})
            after: Row | None = None
            while True:
                page = await self._relay.look(partial(feed.state, wanted=self._wanted, at=at, after=after))
                self._check_held(page, began)
                for item in page.items:
                    await self._tell("SNAPSHOT", Raw(item.event or b"null"))
                if page.last is None:
                    return at
                after = page.last

    @contextmanager
    def _held(self) -> Iterator[tuple[str, int]]:
        """Whatever is held back for a bootstrap is let go of at its end."""
        key, began = self._relay.mint(), self._relay.now()
        try:
            yield key, began
        finally:
            self._relay.end_bootstrap(key)

    def _check_held(self, page: Page, began: int) -> None:
        """Refuse to go on if the bootstrap ran out of time: compaction may have dropped payloads that it still needs."""
        most_s = self._relay.settings.feed.bootstrap_timeout_s
        is_late = self._relay.now() - began >= most_s * SECOND
        if is_late or any(item.event is None for item in page.items):
            raise Refused(Refusal.BOOTSTRAP_EXPIRED, f"it took longer than {most_s} seconds")

    async def _replay(self) -> int:
        """Send what was accepted after `since` until now; returns the position up to which nothing is missing."""
        after, limit = self._wanted.since, self._wanted.limit
        head = await self._relay.look(partial(feed.check_cursor, since=after))
        until = head if self.bound is None else min(self.bound, head)
        while self._sent != limit:
            page = await self._relay.look(partial(self._page, after=after, until=until))
            for item in page.items:
                await self._send(item)
                after = item.row.seq
                if self._sent == limit:
                    return after
            if page.last is None:
                return max(after, until)
            after = page.last.seq
        return after

    def _page(self, transaction: Transaction, after: int, until: int) -> Page:
        feed.check_unpruned(transaction, self._wanted.author, after)
        return feed.changes(transaction, self._wanted, after, until)

    async def _follow(self, after: int) -> None:
        """Send new snapshots as they come, up to the bound if there is one."""
        while self.bound is None or after < self.bound:
            self._news.clear()  # before reading, so that rows that come meanwhile wake us again
            page, until = await self._relay.look(partial(self._news_page, after=after))
            for item in page.items:
                await self._send(item)
            after = until if page.last is None else page.last.seq
            if page.last is None and after != self.bound:
                await self._news.wait()
        await self._say(("CLOSED", self.sub, "until_seq is reached"))

    def _news_page(self, transaction: Transaction, after: int) -> tuple[Page, int]:
        """The next page of new snapshots, and the head of the history when it was read."""
        head = feed.head_seq(transaction)
        until = head if self.bound is None else min(self.bound, head)
        return self._page(transaction, after, until), until

    async def _send(self, item: Item) -> None:
        self._sent += 1
        if item.event is None:
            await self._status(item.row)
        else:
            await self._tell("EVENT", item.row.seq, Raw(item.event))

    async def _tell(self, word: str, *rest: Any) -> None:
        await self._say(("CHANGES", self.sub, word, *rest))


class Feeds:
    """All feed subscriptions at this relay, by author, so that new snapshots wake the right ones."""

    def __init__(self, relay: Relay) -> None:
        # In the order in which they came, so that a simulation can repeat what happened.
        self._of: dict[tuple[str, str], dict[Subscription, None]] = {}
        self._bounded: dict[Subscription, int] = {}
        relay.watch_feeds(self.wake, self.reach)

    def join(self, subscription: Subscription) -> None:
        if subscription.bound is not None:
            self._bounded[subscription] = subscription.bound
        for key in subscription.keys:
            self._of.setdefault(key, {})[subscription] = None

    def leave(self, subscription: Subscription) -> None:
        self._bounded.pop(subscription, None)
        for key in subscription.keys:
            self._of.get(key, {}).pop(subscription, None)
            if not self._of.get(key):
                self._of.pop(key, None)

    def wake(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in keys:
            for subscription in self._woken(key):
                subscription.wake()

    def reach(self, seq: int) -> None:
        """Wake the subscriptions that wait for this position of the history, or for one before."""
        for subscription, bound in self._bounded.items():
            if bound <= seq:
                subscription.wake()

    def _woken(self, key: tuple[str, str]) -> Iterable[Subscription]:
        """The subscriptions that a change concerns: those to its author, and those to all authors."""
        if key == EVERYBODY:
            return chain(*self._of.values())
        return chain(self._of.get(key, ()), self._of.get((FEED, ALL), ())) if key[0] == FEED else ()

    @property
    def open(self) -> int:
        return len(set().union(*self._of.values()))


def closed(sub: str, refused: Refused) -> tuple[str, str, str]:
    """The CLOSED frame that refuses or ends a REQ."""
    return ("CLOSED", sub, ok_message(refused.refusal, refused.detail))
