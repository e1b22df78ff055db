"""A road on which somebody sits who reads everything, keeps it, and lets pass what they like of what the relay says."""

import contextlib
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tests.proxy import Proxy, _end, _parts
from tests.relay.running import ANSWER_S

Frame = list[Any]
Rewrite = Callable[[Frame], list[Frame]]
"""A frame of the relay -> what its reader hears in its place."""

_TEXT, _WHOLE = 0x1, 0x80
_CLOSE = b"\x88\x80\x00\x00\x00\x00"  # as a client closes: masked, with a mask that changes nothing
_SWITCHED = b"HTTP/1.1 101"


def honestly(frame: Frame) -> list[Frame]:
    return [frame]


class HostileRoad(Proxy):
    """Rewrites the frames of queues, garbles answers over HTTP, and remembers every byte that was sent to the relay."""

    def __init__(self, host: str, port: int, target: tuple[str, int]) -> None:
        self.rewrite: Rewrite = honestly
        self.garble: Callable[[bytes], bytes] = bytes
        self.heard: list[bytearray] = []  # what came, connection by connection
        super().__init__(host, port, target)

    def _forth(self, near: socket.socket, far: socket.socket, lost: threading.Event) -> None:
        heard = bytearray()
        self.heard.append(heard)
        for part in _parts(near):
            heard += part
            with contextlib.suppress(OSError):
                far.sendall(part)
        _end(far)

    def _back(self, far: socket.socket, near: socket.socket, lost: threading.Event) -> None:
        reader, is_socket = far.makefile("rb"), False
        with contextlib.suppress(OSError, EOFError):
            while not is_socket:
                head = _head(reader)
                is_socket = head.startswith(_SWITCHED)
                near.sendall(head if is_socket else head + self.garble(_body(head, reader)))
            while True:
                for text in self._passed(*_frame(reader)):
                    near.sendall(text)
        _end(near)

    def _passed(self, kind: int, content: bytes) -> Iterator[bytes]:
        if kind != _TEXT | _WHOLE:
            yield _framed(kind, content)
            return
        for frame in self.rewrite(json.loads(content)):
            yield _framed(kind, json.dumps(frame, separators=(",", ":"), ensure_ascii=False).encode())

    def play_again(self) -> list[bytes]:
        """Say to the relay everything that was ever said, connection by connection; returns what it answers."""
        return [_played(bytes(heard), self._target) for heard in self.heard]


@contextlib.contextmanager
def hostile_road(target: tuple[str, int], host: str) -> Iterator[HostileRoad]:
    """A road on another address of this machine, with the target's port."""
    road = HostileRoad(host, target[1], target)
    try:
        yield road
    finally:
        road.cut()


def _head(reader: Any) -> bytes:
    lines = [reader.readline()]
    if not lines[0]:
        raise EOFError
    while lines[-1] not in (b"\r\n", b""):
        lines.append(reader.readline())
    return b"".join(lines)


def _body(head: bytes, reader: Any) -> bytes:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            found: bytes = reader.read(int(line.partition(b":")[2]))
            return found
    return b""


def _frame(reader: Any) -> tuple[int, bytes]:
    """The kind and the content of a WebSocket frame from a server, which does not mask them."""
    kind, size = _exactly(reader, 2)
    if size == 126:
        size = int.from_bytes(_exactly(reader, 2), "big")
    elif size == 127:
        size = int.from_bytes(_exactly(reader, 8), "big")
    return kind, _exactly(reader, size)


def _exactly(reader: Any, size: int) -> bytes:
    found: bytes = reader.read(size)
    if len(found) < size:
        raise EOFError
    return found


def _framed(kind: int, content: bytes) -> bytes:
    size = len(content)
    if size < 126:
        return bytes([kind, size]) + content
    if size < 65_536:
        return bytes([kind, 126]) + size.to_bytes(2, "big") + content
    return bytes([kind, 127]) + size.to_bytes(8, "big") + content


def _played(heard: bytes, target: tuple[str, int]) -> bytes:
    """What is answered, request by request, and frames up to a goodbye that the conversation did not have."""
    said, answers = io.BytesIO(heard), b""
    with (
        socket.create_connection(target, timeout=ANSWER_S) as again,
        again.makefile("rb") as reader,
        contextlib.suppress(OSError, EOFError),
    ):
        while True:
            head = _head(said)
            again.sendall(head + _body(head, said))
            answer = _head(reader)
            answers += answer + _body(answer, reader)
            if answer.startswith(_SWITCHED):
                again.sendall(said.read() + _CLOSE)
                return answers + reader.read()
    return answers
