"""The process that checks signatures for a relay. It imports little and stores nothing.

A question is a count of four bytes and then, for each signature, the public key, the digest and the signature itself. The
answer is one byte for each.
"""

import os
import signal
import socket
from contextlib import suppress

from holdfast.protocol import keys

COUNT_BYTES = 4
READY = b"\x01"  # sent once, when it has imported what it needs

_ITEM_BYTES = keys.PUBLIC_KEY_BYTES + keys.DIGEST_BYTES + keys.SIGNATURE_BYTES


def received(connection: socket.socket, size: int) -> bytes:
    """Receive exactly this many bytes; raises if the other side ends before."""
    parts, left = [], size
    while left:
        part = connection.recv(left)
        if not part:
            raise ConnectionResetError("the other side has gone")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def serve(connection: socket.socket) -> None:
    """Answer questions until the other side ends."""
    with suppress(ConnectionError):
        connection.sendall(READY)
        while True:
            count = int.from_bytes(received(connection, COUNT_BYTES), "big")
            asked = received(connection, count * _ITEM_BYTES)
            items = (asked[start : start + _ITEM_BYTES] for start in range(0, len(asked), _ITEM_BYTES))
            connection.sendall(bytes(map(_is_good, items)))


def _is_good(item: bytes) -> bool:
    pubkey, rest = item[: keys.PUBLIC_KEY_BYTES], item[keys.PUBLIC_KEY_BYTES :]
    return keys.verify(pubkey.hex(), rest[: keys.DIGEST_BYTES], rest[keys.DIGEST_BYTES :])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is meant for the relay, which ends this process
    serve(socket.socket(fileno=os.dup(0)))
