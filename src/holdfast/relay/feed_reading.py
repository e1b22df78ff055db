"""The feed on one connection: its CHANGES and REQ subscriptions, and which snapshots it may read.

A private relay serves an author's snapshots only to connections that are authenticated with the author's key; an open relay
serves them to everybody. A new subscription replaces an old one with the same id.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from holdfast.protocol.feed_filter import FILTERS_MAX, Wanted, read_changes, read_wanted
from holdfast.protocol.refusal import Refusal, Refused, ok_message
from holdfast.relay.answer import ALL
from holdfast.relay.changes import ChangesSubscription, Feeds, Subscription, closed
from holdfast.relay.feed_requests import RequestSubscription
from holdfast.relay.relay import Relay
from holdfast.relay.stream import Say

Sub = Annotated[str, Meta(min_length=1, max_length=64)]
Run = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

_ABSENT = Raw(b"")


class Changes(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag="CHANGES"):
    sub: Sub
    filter: Raw


class Request(msgspec.Struct, array_like=True):
    """A REQ frame. Its subclass `Req` has one optional field for each filter, up to `FILTERS_MAX`."""

    sub: Sub


Req: type[Any] = msgspec.defstruct(
    "Req",
    [("filter_0", Raw), *((f"filter_{number}", Raw, _ABSENT) for number in range(1, FILTERS_MAX))],
    bases=(Request,),
    array_like=True,
    forbid_unknown_fields=True,
    tag="REQ",
)


class FeedReading:
    """The feed's side of one connection."""

    def __init__(self, relay: Relay, feeds: Feeds, say: Say, run: Run, pubkeys: Collection[str]) -> None:
        self._relay = relay
        self._feeds = feeds
        self._say = say
        self._run = run
        self._pubkeys = pubkeys  # the keys that the connection has authenticated with, in order
        self._open: dict[str, tuple[Subscription, asyncio.Task[None]]] = {}
        self._is_ended = False

    def end(self) -> None:
        """End all subscriptions of this connection, and begin no other."""
        self._is_ended = True
        for sub in list(self._open):
            self.stop(sub)

    def stop(self, sub: str) -> bool:
        """End a subscription; returns whether there was one."""
        opened = self._open.pop(sub, None)
        if opened is None:
            return False
        self._feeds.leave(opened[0])  # a task that is cancelled before it started does not run its own clean-up
        opened[1].cancel()
        return True

    async def changes(self, frame: Changes) -> None:
        """Begin a CHANGES subscription; it replaces one with the same id."""
        self.stop(frame.sub)
        try:
            wanted = read_changes(bytes(frame.filter))
            self._check_author(wanted.author)
            self._begin(ChangesSubscription(self._relay, frame.sub, wanted, self._say), _changes_refused)
        except Refused as refused:
            await self._say(_changes_refused(frame.sub, refused))

    async def request(self, frame: Request) -> None:
        """Begin a REQ subscription; it replaces one with the same id."""
        self.stop(frame.sub)
        try:
            _, *raws = msgspec.structs.astuple(frame)
            filters = [read_wanted(bytes(raw)) for raw in raws if raw != _ABSENT]
            subscription = RequestSubscription(self._relay, frame.sub, filters, self._authors(filters), self._say)
            self._begin(subscription, closed)
        except Refused as refused:
            await self._say(closed(frame.sub, refused))

    def _begin(self, subscription: Subscription, refusal: Callable[[str, Refused], tuple[str, ...]]) -> None:
        if self._is_ended:
            return
        most = self._relay.settings.feed.subscriptions_max
        if len(self._open) >= most:
            raise Refused(Refusal.TOO_MANY_SUBSCRIPTIONS, f"a connection may have {most} subscriptions")
        self._feeds.join(subscription)  # before reading, so that rows that come meanwhile wake it
        self._open[subscription.sub] = (subscription, self._run(self._follow(subscription, refusal)))

    async def _follow(self, subscription: Subscription, refusal: Callable[[str, Refused], tuple[str, ...]]) -> None:
        try:
            await subscription.run()
        except Refused as refused:
            await self._say(refusal(subscription.sub, refused))
        finally:
            self._feeds.leave(subscription)
            opened = self._open.get(subscription.sub)
            if opened is not None and opened[0] is subscription:
                del self._open[subscription.sub]

    def _check_author(self, author: str) -> None:
        if self._relay.settings.feed.open or author in self._pubkeys:
            return
        if not self._pubkeys:
            raise Refused(Refusal.AUTH_REQUIRED, "this relay shows documents to their author")
        raise Refused(Refusal.AUTHOR_ONLY, f"the documents of {author}")

    def _authors(self, filters: list[Wanted]) -> list[str]:
        """The authors whose snapshots a REQ gets: those it names, if it may read them; without names all that it may read."""
        named = {author for wanted in filters for author in wanted.authors or ()}
        if all(wanted.authors is not None for wanted in filters):
            for author in named:
                self._check_author(author)
            return sorted(named)
        if self._relay.settings.feed.open:
            return [ALL]
        if not self._pubkeys:
            raise Refused(Refusal.AUTH_REQUIRED, "this relay shows documents to their author")
        for author in named:
            self._check_author(author)
        return list(self._pubkeys)


def _changes_refused(sub: str, refused: Refused) -> tuple[str, ...]:
    return ("CHANGES", sub, "ERR", ok_message(refused.refusal, refused.detail))
