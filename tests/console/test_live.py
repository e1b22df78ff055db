"""Streams that say that something changed: in time, not too often, and to nobody who left."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.console import live
from holdfast.console.live import Live
from holdfast.protocol.refusal import Refusal, Refused

RUN = "ab12"


def counting(versions: list[int]) -> Callable[[int], Awaitable[int]]:
    """Something that has these versions, one after the other, and then nothing new for ever."""

    async def change(version: int) -> int:
        if version < 0:
            return 0
        if versions:
            return versions.pop(0)
        await asyncio.Event().wait()
        return version

    return change


async def heard(stream: Live, count: int, is_wanted: Callable[[], bool] = lambda: True) -> list[bytes]:
    async with stream.open(is_wanted) as opened:
        assert opened.headers()["content-type"] == "text/event-stream"
        return [await anext(opened.chunks, b"end") for _ in range(count)]


def test_every_change_is_told_and_the_end_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PACE_S", 0.001)

    async def look() -> list[bytes]:
        stream = Live(counting([4, 9]), RUN)
        async with stream.open() as opened:
            told = [await anext(opened.chunks) for _ in range(3)]
            stream.end()
            return [*told, await anext(opened.chunks, b"end")]

    assert asyncio.run(look()) == [
        b": holdfast\n\n",
        b"event: changed\ndata: ab12.4\n\n",
        b"event: changed\ndata: ab12.9\n\n",
        b"end",
    ]


@pytest.mark.parametrize(
    ("since", "told"), [("ab12.3", True), ("ab12.4", False), ("ab12.9", True), ("cd34.4", True), (None, False)]
)
def test_what_came_between_a_page_and_its_stream_is_told(
    monkeypatch: pytest.MonkeyPatch, since: str | None, told: bool
) -> None:
    monkeypatch.setattr(live, "PACE_S", 0.001)
    monkeypatch.setattr(live, "KEEP_ALIVE_S", 0.001)

    async def change(version: int) -> int:
        if version >= 0:
            await asyncio.Event().wait()
        return 4

    async def look() -> bytes:
        async with Live(change, RUN).open(since=since) as opened:
            return [await anext(opened.chunks) for _ in range(2)][1]

    assert asyncio.run(look()) == (b"event: changed\ndata: ab12.4\n\n" if told else b": still here\n\n")


def test_silence_is_kept_alive_and_whoever_signed_out_hears_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "KEEP_ALIVE_S", 0.001)
    answers = iter([True, True, False])

    async def look() -> tuple[list[bytes], int]:
        stream = Live(counting([]), RUN)
        return await heard(stream, 4, lambda: next(answers)), stream.open_count

    assert asyncio.run(look()) == ([b": holdfast\n\n", b": still here\n\n", b": still here\n\n", b"end"], 0)


def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAMS_MAX", 1)

    async def look() -> None:
        stream = Live(counting([]), RUN)
        async with stream.open():
            with pytest.raises(Refused) as caught:
                await heard(stream, 1)
            assert caught.value.refusal is Refusal.TOO_MANY_STREAMS
        assert await heard(stream, 1) == [b": holdfast\n\n"]

    asyncio.run(look())
