"""A daemon's socket as the world may leave it: somebody takes one request there, and is gone."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def read_request(connection: socket.socket) -> bytes:
    """A whole request, head and body; nothing of somebody who left without asking."""
    read = b""
    while b"\r\n\r\n" not in read:
        part = connection.recv(65_536)
        if not part:
            return b""
        read += part
    head, _, body = read.partition(b"\r\n\r\n")
    length = sum(map(int, re.findall(rb"content-length: (\d+)", head.lower())))  # none of a request without a body
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


@contextmanager
def vanishing(path: Path) -> Iterator[list[bytes]]:
    """Takes one request at a path, and goes without a word; the list has what it took."""
    taken: list[bytes] = []

    def serve() -> None:
        while not taken:
            near, _ = listener.accept()
            with near:
                if asked := read_request(near):
                    listener.close()
                    path.unlink()
                    taken.append(asked)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        yield taken
        server.join(30)
