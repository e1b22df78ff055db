"""Requests and event streams over a daemon's Unix socket, and what their failures mean."""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2 as httpx
import msgspec

from holdfast.device.home import Home
from holdfast.protocol.refusal import PROBLEM_TYPE, Refusal, Refused
from holdfast.store import faults
from holdfast.wire.network import SOCKET_PATH_BYTES_MAX, is_too_long
from holdfast.wire.unix_transport import UnixTransport

SOCKET_NAME = "daemon.sock"
CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 60.0  # long, because administration waits for the relay
SILENCE_TIMEOUT_S = 40.0  # of an event stream, which sends a keep-alive every 15 seconds

_BASE = "http://localhost"
_NOT_IN_JSON = (bytes, bytearray, memoryview)

T = TypeVar("T")


class NoDaemon(faults.Fault):
    what = "no daemon answers in this home"
    remedy = "Start one with `holdfast daemon up`. If one was here, `holdfast daemon logs` says how it ended."
    temporary = True


class HomeTooLong(NoDaemon):
    what = f"no daemon can be here: the path of its socket is too long, the system takes {SOCKET_PATH_BYTES_MAX} bytes"
    remedy = "Move the home to a shorter path, and name that in HOLDFAST_HOME."
    temporary = False


class DaemonLost(faults.Fault):
    what = "the daemon went away before it had answered"
    remedy = "Ask again; a send keeps its client_message_id, so that nothing is sent twice."
    temporary = True


class SendUnanswered(DaemonLost):
    """A send that may or may not be on the daemon's disk; `detail` is its client_message_id, to repeat it under."""

    what = "the daemon went away before it had answered, and may have taken the message under this id"
    remedy = "Repeat the send with that client_message_id: it is not sent twice then."

    @property
    def client_message_id(self) -> str:
        return self.detail


class RequestRefused(Refused):
    """A refusal by the daemon; `document` is its whole answer."""

    def __init__(self, refusal: Refusal, document: Mapping[str, Any]) -> None:
        super().__init__(refusal, str(document.get("detail", "")))
        self.document = document


class NotUnderstood(Exception):
    """The daemon failed, or another program answers on its socket."""


class Link:
    """A connection to one daemon."""

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        path: str | os.PathLike[str] | None = None,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        if home is not None and path is not None:
            raise ValueError("give the home or the socket, not both")
        named = Path(path) if path is not None else socket_of(Home.find() if home is None else Home(home))
        self.socket = named.absolute()  # connections are made again and again, and the program may change its directory
        self._timeout = httpx.Timeout(answer_timeout_s, connect=CONNECT_TIMEOUT_S)
        self._inherited: list[httpx.Client] = []
        self._begin()

    def _begin(self) -> None:
        transport = UnixTransport(str(self.socket))
        self._http = httpx.Client(transport=transport, timeout=self._timeout, base_url=_BASE, trust_env=False)
        self._streams: list[socket.socket] = []
        self._process = os.getpid()

    def _here(self) -> httpx.Client:
        """The connections of this process. A forked child leaves its parent's alone: it would get the parent's answers."""
        if self._process != os.getpid():
            self._inherited.append(self._http)  # not closed: a thread that is not here may hold its lock
            self._begin()
        return self._http

    def close(self) -> None:
        self._here().close()

    def interrupt(self) -> None:
        """End every open stream. May be called from any thread."""
        self._here()
        for stream in tuple(self._streams):
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)

    def ask(
        self, method: str, path: str, shape: type[T], *, body: object = None, query: Mapping[str, object] | None = None
    ) -> T:
        """Make a request; returns the answer's document, and raises on every refusal and fault."""
        content = None if body is None else _write(body)
        headers = {} if body is None else {"content-type": "application/json"}
        with self._meaning():
            response = self._here().request(
                method, path, content=content, headers=headers, params=_parameters(query or {})
            )
        _judge(response.status_code, response.content)
        return _read(response.content, shape)

    @contextmanager
    def stream(self, path: str, query: Mapping[str, object], headers: Mapping[str, str]) -> Iterator[Iterator[str]]:
        """The lines of an endless answer; the iterator ends when the daemon ends the stream, and raises if it breaks."""
        timeout = httpx.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        with (
            self._meaning(),
            self._here().stream(
                "GET", path, params=_parameters(query), headers=dict(headers), timeout=timeout
            ) as response,
        ):
            if response.status_code != 200:
                _judge(response.status_code, response.read())
            waiting: socket.socket = response.extensions["network_stream"].get_extra_info("socket")
            streams = self._streams  # of this process: a forked child, which has its own, may leave this, too
            streams.append(waiting)
            try:
                yield _lines(response.iter_text())
            finally:
                streams.remove(waiting)

    @contextmanager
    def _meaning(self) -> Iterator[None]:
        """Raise NoDaemon if nobody answers at the socket, and DaemonLost if the daemon went away before it answered."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            absent = HomeTooLong if is_too_long(str(self.socket)) else NoDaemon
            raise absent(str(self.socket), str(error)) from error
        except httpx.TransportError as error:
            raise DaemonLost(str(self.socket), str(error)) from error


def socket_of(home: Home) -> Path:
    """The path of the socket of a home's daemon."""
    return home.path / SOCKET_NAME


def part(text: str) -> str:
    """A text as one segment of a URL's path. Its dots are quoted too: `.` and `..` would be steps of the path."""
    if not text:
        raise Refused(Refusal.MALFORMED, "an id or a name has at least one character")
    return quote(_utf8(text), safe="").replace(".", "%2E")


def _lines(texts: Iterator[str]) -> Iterator[str]:
    """The lines of a stream. Only a line feed ends one: other ends that Unicode knows may be in what somebody said."""
    rest = ""
    for text in texts:
        *lines, rest = (rest + text).split("\n")
        yield from lines


def _parameters(query: Mapping[str, object]) -> dict[str, str]:
    texts = {True: "true", False: "false"}
    return {
        name: texts[value] if isinstance(value, bool) else _utf8(str(value)).decode()
        for name, value in query.items()
        if value is not None
    }


def _write(body: object) -> bytes:
    """A body as JSON. Refuses what would arrive as something else: bytes as other text, a number that is none as null."""
    try:
        plain = msgspec.to_builtins(body, builtin_types=_NOT_IN_JSON)
        return _utf8(json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")))
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(Refusal.MALFORMED, f"this cannot be written as JSON: {error}") from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # from a command line that was not UTF-8
        raise Refused(Refusal.MALFORMED, "there is text that cannot be written as UTF-8") from error


def _judge(status: int, body: bytes) -> None:
    if status in (200, 202):
        return
    try:
        document: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
        refusal = Refusal(document["code"]) if document["type"] == PROBLEM_TYPE + document["code"] else None
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, ValueError):
        document, refusal = {}, None
    if refusal is None:
        raise NotUnderstood(f"the daemon answers {status}: {document.get('detail') or body[:200]!r}")
    from holdfast.device.trouble import carried  # here, because it imports most of the daemon, and is rarely needed

    raise carried(document) or RequestRefused(refusal, document)


def _read(body: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotUnderstood(f"the daemon's answer is not one that this version knows: {error}") from error
