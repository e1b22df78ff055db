"""A road to a relay that a test can cut: answers that never arrive, and a relay that cannot be reached at all."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator


class Proxy:
    """Passes connections on. `swallow` loses the answer to a request with these bytes in it, after the relay gave it.

    Every request with the bytes `failing` in it is answered 500 instead, as by a relay that stumbles over it.
    """

    def __init__(self, host: str, port: int, target: tuple[str, int]) -> None:
        self._address = (host, port)
        self._target = target
        self._wanted = b""
        self.failing = b""
        self.swallowed = threading.Event()
        self._guard = threading.Lock()  # of what is open: nobody is let in while it is cut
        self._open: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.restore()

    @property
    def url(self) -> str:
        return f"http://{self._address[0]}:{self._address[1]}"

    def swallow(self, wanted: bytes) -> None:
        self.swallowed.clear()
        self._wanted = wanted

    def cut(self) -> None:
        """Nobody gets through, and everybody who was is thrown out."""
        with self._guard:
            cut = [one for one in (self._listener, *self._open) if one is not None]
            self._listener = None
            self._open.clear()
        for connection in cut:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def restore(self) -> None:
        listener = socket.create_server(self._address)
        self._address = listener.getsockname()
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:  # nobody is there just now
                near.close()
                continue
            with self._guard:
                is_cut = self._listener is not listener
                self._open += [] if is_cut else [near, far]
            if is_cut:  # since somebody knocked
                near.close()
                far.close()
                return
            lost = threading.Event()
            threading.Thread(target=self._forth, args=(near, far, lost), daemon=True).start()
            threading.Thread(target=self._back, args=(far, near, lost), daemon=True).start()

    def _forth(self, near: socket.socket, far: socket.socket, lost: threading.Event) -> None:
        asked = b""
        for part in _parts(near):
            asked += part
            if self.failing and self.failing in part:
                with contextlib.suppress(OSError):
                    near.sendall(
                        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    )
                break
            if self._wanted and self._wanted in asked:
                lost.set()
            with contextlib.suppress(OSError):  # it was cut meanwhile
                far.sendall(part)
        _end(far)

    def _back(self, far: socket.socket, near: socket.socket, lost: threading.Event) -> None:
        for part in _parts(far):
            if lost.is_set():
                self._wanted = b""
                self.swallowed.set()
            else:
                with contextlib.suppress(OSError):
                    near.sendall(part)
        _end(near)


@contextlib.contextmanager
def proxy_to(target: tuple[str, int], host: str) -> Iterator[Proxy]:
    """A proxy on another address of this machine, with the target's port, which should be one of `ports`: it is left and taken."""
    proxy = Proxy(host, target[1], target)
    try:
        yield proxy
    finally:
        proxy.cut()


def _parts(connection: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while part := connection.recv(65_536):
            yield part


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)


class RoughProxy(Proxy):
    """A bad road: while `is_rough`, parts come late, answers get lost, connections are cut, and requests come twice."""

    DELAY_S_MAX = 0.03
    CUT, LOSE, REPEAT = 0.02, 0.02, 0.05  # how often, of all parts

    def __init__(self, host: str, port: int, target: tuple[str, int], luck: random.Random) -> None:
        self.is_rough = False
        self.counts = {"delayed": 0, "cut": 0, "lost": 0, "repeated": 0}
        self._luck = luck
        super().__init__(host, port, target)

    @classmethod
    @contextlib.contextmanager
    def to(cls, target: tuple[str, int], host: str, luck: random.Random) -> "Iterator[RoughProxy]":
        """A proxy on another address of this machine, with the target's port."""
        proxy = cls(host, target[1], target, luck)
        try:
            yield proxy
        finally:
            proxy.is_rough = False
            proxy.cut()

    def _forth(self, near: socket.socket, far: socket.socket, lost: threading.Event) -> None:
        asked = b""
        for part in _parts(near):
            asked += part
            if not self._passes(near, far):
                break
            with contextlib.suppress(OSError):
                far.sendall(part)
            if self._happens("repeated", self.REPEAT) and asked.startswith(b"POST "):
                self._repeat(asked)
        _end(far)

    def _back(self, far: socket.socket, near: socket.socket, lost: threading.Event) -> None:
        for part in _parts(far):
            if not self._passes(near, far):
                break
            if self._happens("lost", self.LOSE):  # and everything after it, for a stream has no holes
                _shut(near, far)
                break
            with contextlib.suppress(OSError):
                near.sendall(part)
        _end(near)

    def _passes(self, near: socket.socket, far: socket.socket) -> bool:
        """Whether a part gets through, perhaps late."""
        if self._happens("cut", self.CUT):
            _shut(near, far)
            return False
        if self._happens("delayed", 0.5):
            time.sleep(self._luck.uniform(0, self.DELAY_S_MAX))
        return True

    def _happens(self, what: str, chance: float) -> bool:
        happens = self.is_rough and self._luck.random() < chance
        self.counts[what] += happens
        return happens

    def _repeat(self, asked: bytes) -> None:
        """What was asked on a connection so far comes a second time, on another; nobody hears the answer."""
        with contextlib.suppress(OSError), socket.create_connection(self._target, timeout=5) as again:
            again.sendall(asked)
            again.shutdown(socket.SHUT_WR)
            for _ in _parts(again):
                pass


def _shut(*connections: socket.socket) -> None:
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
