"""What every program that runs until it is told to stop has in common."""

import asyncio
import signal


def stop_signal() -> asyncio.Event:
    """Set when the system or a person at the terminal wants this process to end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
