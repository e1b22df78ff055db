"""Signatures checked by processes of their own: the dearest part of an accept, on a core that the relay leaves free.

A thread would have to come back to the interpreter after every signature and wait there for its turn; a process is asked for
many at once and is waited for once. A few are checked where they are, which is sooner done than said. A process that dies
takes nothing with it: what it was asked is checked here, and another one takes its place.
"""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from holdfast.protocol import keys
from holdfast.protocol.event import Event
from holdfast.relay.screening import verify_here

HERE_MAX = 3
"""So many signatures are checked by whoever asks."""


ANSWER_S = 60.0
"""A process that is silent for so long is given up."""

_ITEM_BYTES = keys.PUBLIC_KEY_BYTES + keys.DIGEST_BYTES + keys.SIGNATURE_BYTES
_COUNT_BYTES = 4
_READY = b"\x01"


class Verifiers:
    """Checks signatures for several threads, each with a process at its side."""

    def __init__(self, processes: int) -> None:
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        for _ in range(processes):
            self._start()

    def verify(self, events: Sequence[Event]) -> list[bool]:
        """Whether its author signed each event."""
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
        with suppress(OSError):  # where the system gives no process, signatures are checked here
            self._idle.put(_Process())


class _Process:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(ANSWER_S)
        self._has_begun = False
        with theirs:
            command = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)  # noqa: S603 - ourselves

    def is_ready(self) -> bool:
        """Whether it has loaded what it needs; nobody waits for that."""
        if not self._has_begun and select.select([self._socket], [], [], 0)[0]:
            self._has_begun = _received(self._socket, len(_READY)) == _READY
        return self._has_begun

    def verify(self, events: Sequence[Event]) -> list[bool]:
        spelled = "".join([event.pubkey + event.id + event.sig for event in events])
        self._socket.sendall(len(events).to_bytes(_COUNT_BYTES, "big") + bytes.fromhex(spelled))
        return [good == 1 for good in _received(self._socket, len(events))]

    def end(self) -> None:
        self._socket.close()  # it reads the end, and goes
        self._process.wait()


def _received(connection: socket.socket, size: int) -> bytes:
    parts, left = [], size
    while left:
        part = connection.recv(left)
        if not part:
            raise ConnectionResetError("the other side has gone")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def serve(connection: socket.socket) -> None:
    """Answer until the other side goes: for each signature, one byte."""
    with suppress(ConnectionError):
        connection.sendall(_READY)
        while True:
            count = int.from_bytes(_received(connection, _COUNT_BYTES), "big")
            asked = _received(connection, count * _ITEM_BYTES)
            items = (asked[start : start + _ITEM_BYTES] for start in range(0, len(asked), _ITEM_BYTES))
            connection.sendall(bytes(map(_is_good, items)))


def _is_good(item: bytes) -> bool:
    pubkey, rest = item[: keys.PUBLIC_KEY_BYTES], item[keys.PUBLIC_KEY_BYTES :]
    return keys.verify(pubkey.hex(), rest[: keys.DIGEST_BYTES], rest[keys.DIGEST_BYTES :])


if __name__ == "__main__":
    serve(socket.socket(fileno=os.dup(0)))
