"""What every program that runs until it is told to stop has in common."""

import asyncio
import gc
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter while another wants it: a writer that comes back from its disk waits for no more."""

COLLECTED_AFTER = 20_000
"""How many objects are made before circles of them are looked for: a batch of requests makes thousands, and no circles."""


def run(program: Coroutine[Any, Any, None]) -> None:
    """Run a program that serves, on the loop whose sockets cost least; it works on any."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()  # what is loaded by now stays, and need not be looked at again and again
    gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(program)


def stop_signal() -> asyncio.Event:
    """Set when the system or a person at the terminal wants this process to end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
