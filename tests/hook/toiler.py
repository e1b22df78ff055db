"""A process with a worker whose handler fails often, takes a moment, and writes down what it does.

    python -m tests.hook.toiler HOME JOURNAL [alone]

`alone` brings the home's device along, so that the history is written, too.
"""

import asyncio
import os
import random
import sys
import time
from pathlib import Path

from holdfast.cli.hook_process import HookService
from holdfast.device.device import at_work
from holdfast.device.home import Home
from holdfast.hook import database
from holdfast.hook.event import HookEvent
from holdfast.hook.store import Store
from holdfast.hook.worker import Worker
from holdfast.store.world import wall_clock

HOPELESS = 41  # every so many events cannot be handled at all
FAILING = 9  # and every so many fail the first time


class Toil:
    """The handler: a line when it begins, a line when it is done; the last thing it does is to say so."""

    def __init__(self, journal: Path) -> None:
        self._descriptor = os.open(journal, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    async def __call__(self, event: HookEvent) -> None:
        number = event.payload["n"]
        self._note("begin", event)
        await asyncio.sleep(random.uniform(0, 0.01))
        if number % HOPELESS == 0:
            self._note("fail", event)
            raise ValueError(f"thing {number} not found")
        if number % FAILING == 0 and event.attempts == 1:
            self._note("fail", event)
            raise RuntimeError(f"not now: {number}")
        self._note("end", event)

    def _note(self, what: str, event: HookEvent) -> None:
        words = (what, time.monotonic_ns(), os.getpid(), event.session_id, event.payload["n"], event.event_id)
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())


async def toil(home: Path, handler: Toil) -> None:
    store = Store(database.opened(home / "hooks.db", wall_clock))
    try:
        await Worker(home, store, handler, clock=wall_clock, random=os.urandom).run()
    finally:
        store.close()


if __name__ == "__main__":
    home, journal, *rest = sys.argv[1:]
    os.write(1, b"ready\n")  # a start may take long; whoever wants to kill us after a while counts from here
    if rest:
        with at_work(Home(home), create=True, threaded=True) as device:
            asyncio.run(HookService(device, Toil(Path(journal)), is_clock_right=lambda: True).run())
    else:
        asyncio.run(toil(Path(home), Toil(Path(journal))))
