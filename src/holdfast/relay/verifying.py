"""Checking signatures in processes of their own: it is the slowest part of an accept, and they use cores that the relay leaves free.

A thread would have to take the interpreter's lock after every signature; a process checks many at once and is waited for
once. A few are checked in place, which is faster than asking. If a process dies nothing is lost: its question is answered
in place, and another process is started.
"""

import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from holdfast.protocol.event import Event
from holdfast.relay import verifier
from holdfast.relay.screening import verify_here
from holdfast.relay.verifier import COUNT_BYTES, READY, received

HERE_MAX = 3
"""Up to so many signatures are checked in place."""

ANSWER_S = 60.0
"""A process that does not answer for so long is given up."""


class Verifiers:
    """Checks signatures for several threads, each with a verifier process."""

    def __init__(self, processes: int) -> None:
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        for _ in range(processes):
            self._start()

    def verify(self, events: Sequence[Event]) -> list[bool]:
        """For each event, whether its author signed it."""
        if len(events) <= HERE_MAX:
            return verify_here(events)
        try:
            process = self._idle.get_nowait()
        except Empty:
            return verify_here(events)
        try:
            found = process.verify(events) if process.is_ready() else verify_here(events)
        except OSError:
            process.end()
            self._start()
            return verify_here(events)
        self._idle.put(process)
        return found

    def close(self) -> None:
        with suppress(Empty):
            while True:
                self._idle.get_nowait().end()

    def _start(self) -> None:
        with suppress(OSError):  # if no process can be started, signatures are checked in place
            self._idle.put(_Process())


class _Process:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(ANSWER_S)
        self._has_begun = False
        with theirs:
            command = [sys.executable, "-m", verifier.__name__]
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)  # noqa: S603 - ourselves

    def is_ready(self) -> bool:
        """Whether the process has started up; does not wait."""
        if not self._has_begun and select.select([self._socket], [], [], 0)[0]:
            self._has_begun = received(self._socket, len(READY)) == READY
        return self._has_begun

    def verify(self, events: Sequence[Event]) -> list[bool]:
        spelled = "".join([event.pubkey + event.id + event.sig for event in events])
        self._socket.sendall(len(events).to_bytes(COUNT_BYTES, "big") + bytes.fromhex(spelled))
        return [good == 1 for good in received(self._socket, len(events))]

    def end(self) -> None:
        self._socket.close()
        self._process.kill()  # it stores nothing
        self._process.wait()
