"""`holdfast.SyncClient` over real sockets, at several relays at once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import holdfast
from holdfast.cli.check import inspect
from holdfast.device import author as authors
from holdfast.device import feed_relays
from holdfast.device.device import at_work
from holdfast.device.home import Home
from tests.device.company import until
from tests.people import secret_of
from tests.relay.feed_client import open_feed

AUTHOR = secret_of("the author")


@asynccontextmanager
async def notes(path: Path, *relays: str) -> AsyncIterator[holdfast.SyncClient]:
    """A home of the author that follows these relays; every rule holds when it is over."""
    home = Home(path)
    with at_work(home, create=True, threaded=True) as device:
        device.do(partial(authors.keep, now=device.clock(), secret=AUTHOR))
        client = holdfast.SyncClient(device)
        for relay in relays:
            await client.add_relay(relay)
        running = asyncio.create_task(client.run())
        try:
            yield client
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert inspect(home.database) == ("device", [])


def says(client: holdfast.SyncClient, **expected: str) -> Callable[[], bool]:
    return lambda: {one.name: one.body for one in client.documents()} == expected


def test_homes_that_share_no_relay_converge_through_one_that_follows_both(tmp_path: Path) -> None:
    with open_feed(tmp_path / "east") as east, open_feed(tmp_path / "west") as west:

        async def live() -> None:
            async with AsyncExitStack() as stack:
                left = await stack.enter_async_context(notes(tmp_path / "left", east.relay.url))
                right = await stack.enter_async_context(notes(tmp_path / "right", west.relay.url))
                await left.put("from the left", "a")
                await right.put("from the right", "b")
                await left.put("both", "one")
                await right.put("both", "two")
                path = tmp_path / "between"
                between = await stack.enter_async_context(notes(path, east.relay.url, west.relay.url))
                for client in (between, left, right):
                    await until(lambda client=client: len(client.documents()) == 3)  # type: ignore[misc]
                    await until(lambda client=client: client.document("both").status == "conflict")  # type: ignore[misc]
                await right.resolve("both", "one and two")
                expected = {"from the left": "a", "from the right": "b", "both": "one and two"}
                await until(*(says(client, **expected) for client in (left, between, right)))
                await left.delete("from the right")
                del expected["from the right"]
                await until(*(says(client, **expected) for client in (left, between, right)))

        asyncio.run(live())
        for feed in (east, west):
            assert feed.relay.metric("holdfast_bugs_total") == 0


def test_a_relay_that_was_kept_under_no_possible_name_is_listed_as_not_followed_and_the_others_are_followed(
    tmp_path: Path,
) -> None:
    home, impossible = Home(tmp_path / "home"), "http://a..b"
    with at_work(home, create=True) as device:
        device.do(lambda tx: feed_relays.add(tx, device.clock(), impossible))  # refused by now, but not always

    async def follow() -> None:
        async with notes(home.path, feed.relay.url) as client:
            await until(lambda: client.is_live(feed.relay.url), lambda: impossible in client.details)
            assert client.details[impossible].startswith("no connection (")

    with open_feed(tmp_path / "relay") as feed:
        asyncio.run(follow())


def test_what_is_written_while_a_relay_is_away_comes_to_it_when_it_is_back(tmp_path: Path) -> None:
    async def write() -> None:
        async with notes(tmp_path / "home", "http://127.0.0.1:9") as client:
            await client.put("list", "milk")
            await until(lambda: "http://127.0.0.1:9" in client.details)
            assert client.document("list").body == "milk"
            assert not client.is_live("http://127.0.0.1:9")

    asyncio.run(write())
    with open_feed(tmp_path / "relay") as feed:

        async def follow() -> None:
            async with notes(tmp_path / "home", feed.relay.url) as client:
                await until(lambda: client.is_live(feed.relay.url))
                async with notes(tmp_path / "other", feed.relay.url) as other:
                    await until(says(other, list="milk"))

        asyncio.run(follow())
