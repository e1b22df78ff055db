"""The file watch: a receiver's write is noticed without anybody looking."""

import asyncio
import sys
from pathlib import Path

import pytest

from holdfast.hook.watch import watching
from tests.hook.receivers import run, take_in

PATIENCE_S = 60.0

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="there is no watch elsewhere, only the look"
)


def test_what_a_receiver_writes_wakes_the_worker_and_nothing_else_does(home: Path) -> None:
    run(home, "claude", {"session_id": "s", "hook_event_name": "Stop"})

    async def scene() -> None:
        told = asyncio.Event()
        with watching(home, told.set) as is_possible:
            assert is_possible
            (home / "daemon.log").write_text("of no interest")
            assert take_in(home) == 1  # neither does the worker itself
            await asyncio.sleep(0.1)
            assert not told.is_set()
            await asyncio.to_thread(run, home, "claude", {"session_id": "s", "hook_event_name": "Stop"})
            async with asyncio.timeout(PATIENCE_S):
                await told.wait()

    asyncio.run(scene())


def test_a_directory_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    async def scene() -> None:
        with watching(tmp_path / "none", lambda: None) as is_possible:
            assert not is_possible

    asyncio.run(scene())
