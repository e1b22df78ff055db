"""Ports for those who leave theirs and want it back."""

import os
import random
import socket
from pathlib import Path

LOWEST = 10_000


def port() -> int:
    """One that is free, and that the system gives to nobody by itself: it would take one of its own for a connection,
    even for one to whom listened there a moment ago, and whoever comes back finds it taken."""
    lent = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    luck = random.Random(os.urandom(8))
    while True:
        chosen = luck.randrange(LOWEST, max(LOWEST + 1, lent))
        try:
            socket.create_server(("127.0.0.1", chosen)).close()
        except OSError:
            continue
        return chosen


def options() -> tuple[str, str]:
    """What a relay is told that shall have one."""
    return "--port", str(port())
