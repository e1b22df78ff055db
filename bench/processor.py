"""How much processor time a server takes, with every process that it has started: a busy machine changes that least."""

import os
from collections.abc import Callable
from pathlib import Path

from bench.load import Measured

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USED, _OF_THE_ENDED = slice(11, 13), slice(13, 15)  # user and system time of /proc/PID/stat, behind the name


def with_processor(pid: int, work: Callable[[], Measured]) -> Measured:
    """What work measures, and what it costs the server."""
    before = used_s(pid)
    measured = work()
    measured.server_s = used_s(pid) - before
    return measured


def used_s(pid: int) -> float:
    """Seconds that a process and all below it have used; those of a child that has ended are its parent's."""
    try:
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        tasks = os.listdir(f"/proc/{pid}/task")
        children = [one for task in tasks for one in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except FileNotFoundError:
        return 0.0  # it ends this moment
    own = sum(map(int, (*times[_USED], *times[_OF_THE_ENDED]))) / _TICKS_PER_S
    return own + sum(used_s(int(child)) for child in children)
