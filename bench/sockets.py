"""WebSocket clients of the relay: as many frames under way as it takes, from a process of its own, no library in between.

Frames are made beforehand, and what comes back is cut at frame borders without being read: as little as Python can do.
"""

import base64
import multiprocessing
import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from bench.load import PATIENCE_S, Measured, _cpu_s

WINDOW = 64  # events that the relay takes from one socket before it has answered some


class WebSocket:
    """A connection, and the frames on it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET / HTTP/1.1\r\nhost: {address[0]}:{address[1]}\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
            f"sec-websocket-key: {key}\r\nsec-websocket-version: 13\r\n\r\n".encode()
        )
        self._buffer = b""
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += self._socket.recv(65_536)
        self._buffer = self._buffer.partition(b"\r\n\r\n")[2]

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def frames(self) -> Iterator[bytes]:
        """What comes, text by text."""
        while True:
            while (found := self._next()) is not None:
                yield found
            got = self._socket.recv(1 << 20)
            if not got:
                return
            self._buffer += got

    def waiting(self) -> list[bytes]:
        """All texts that have come; at least one."""
        found: list[bytes] = []
        while not found:
            got = self._socket.recv(1 << 20)
            if not got:
                raise ConnectionError("the relay closed the socket")
            self._buffer += got
            while (text := self._next()) is not None:
                found.append(text)
        return found

    def _next(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        length, start = buffer[1] & 127, 2
        if length == 126:
            if len(buffer) < 4:
                return None
            length, start = struct.unpack_from(">H", buffer, 2)[0], 4
        elif length == 127:
            if len(buffer) < 10:
                return None
            length, start = struct.unpack_from(">Q", buffer, 2)[0], 10
        if len(buffer) < start + length:
            return None
        self._buffer = buffer[start + length :]
        return buffer[start : start + length]

    def close(self) -> None:
        self._socket.close()


def frame(text: bytes) -> bytes:
    """A text as a client sends it; the mask is nought, which changes nothing."""
    if len(text) < 126:
        head = struct.pack(">BB", 0x81, 0x80 | len(text))
    elif len(text) < 65_536:
        head = struct.pack(">BBH", 0x81, 0x80 | 126, len(text))
    else:
        head = struct.pack(">BBQ", 0x81, 0x80 | 127, len(text))
    return head + bytes(4) + text


def published(address: tuple[str, int], messages: list[bytes], seconds: float, *, is_greeted: bool = True) -> Measured:
    """Messages published over one socket, a window of them under way; some relays say something first."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    frames = [frame(b'["EVENT",' + raw + b"]") for raw in messages]
    process = context.Process(target=_publish, args=(theirs, address, frames, seconds, is_greeted))
    process.start()
    theirs.close()
    try:
        found: Measured = mine.recv()
    except EOFError:
        raise RuntimeError("the load ended before it had finished") from None
    finally:
        process.join()
    return found


def _publish(pipe: Any, address: tuple[str, int], frames: list[bytes], seconds: float, is_greeted: bool) -> None:
    client = WebSocket(address)
    if is_greeted:
        client.waiting()  # the relay's challenge
    used, began = _cpu_s(), time.perf_counter()
    ends, sent, answered = began + seconds, 0, 0
    asked_at: list[float] = []
    latencies: list[float] = []
    while True:
        now = time.perf_counter()
        free = WINDOW - (sent - answered) if now < ends else 0
        if free > 0 and sent < len(frames):
            some = frames[sent : sent + free]
            client.send(b"".join(some))
            asked_at += [now] * len(some)
            sent += len(some)
        if sent == answered:
            break
        for text in client.waiting():
            if not text.startswith(b'["OK",') or b"true" not in text:
                raise RuntimeError(text[:300].decode())
            latencies.append((time.perf_counter() - asked_at[answered]) * 1000)
            answered += 1
    took = time.perf_counter() - began
    client.close()
    pipe.send(Measured(answered, took, latencies, (_cpu_s() - used) / took))
