"""A WebSocket to one relay: it authenticates, then receives one kind of frames, such as those of our queue.

Every wait has a timeout, every frame a size limit, and the number of unread frames is limited. However the connection ends,
one exception says why: with the relay's refusal if it gave one, else with a fault.
"""

import asyncio
import contextlib
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import msgspec
import structlog
from websockets.asyncio.client import ClientConnection
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.uri import parse_uri

from holdfast.protocol import features, keys
from holdfast.protocol.connection_auth import sign_connection_auth
from holdfast.protocol.event import encode
from holdfast.protocol.features import Negotiated
from holdfast.protocol.reaction import FaultKind
from holdfast.protocol.refusal import REFUSALS, Refusal, Refused, refusal_in
from holdfast.protocol.schedule import SECOND
from holdfast.store.world import Clock, Random
from holdfast.wire import queue_frames
from holdfast.wire.client import CONNECT_TIMEOUT_S, DETAIL_CHARACTERS_MAX
from holdfast.wire.network import Network
from holdfast.wire.queue_frames import AckUnknown, Frame, QueueStatus

ANSWER_TIMEOUT_S = 15.0  # for the relay's answer to a request
PING_INTERVAL_S = 20.0  # on an otherwise idle connection
PING_TIMEOUT_S = 20.0
CLOSE_TIMEOUT_S = 2.0
FRAME_BYTES_MAX = 262_144  # of one message; one with the largest event takes half of it
FRAMES_MAX = 512  # held unread; a window has 200 messages
ACK_SEQS_MAX = 1_000  # in one acknowledgement

_SUBSCRIPTION = "queue"
_POLICY = 1008

_log = structlog.get_logger(__name__)

F = TypeVar("F")
S = TypeVar("S", bound="FrameSocket[Any]")


class SocketClosed(Exception):
    """The connection ended or could not be opened. `refusal` is the relay's reason, if it gave one that we know."""

    def __init__(self, url: str, fault: FaultKind, detail: str, refusal: Refusal | None = None) -> None:
        super().__init__(f"{url}: {detail}")
        self.url = url
        self.fault = fault
        self.detail = detail
        self.refusal = refusal


class FrameSocket(ABC, Generic[F]):
    """An authenticated connection that receives one kind of frames. One reader at a time."""

    def __init__(self, url: str, connection: ClientConnection) -> None:
        self.url = url
        self._connection = connection
        self._frames: asyncio.Queue[F | None] = asyncio.Queue(FRAMES_MAX)  # None: the connection ended
        self._reader: asyncio.Task[None] | None = None
        self._end: SocketClosed | None = None

    async def authenticate(self, secret: bytes, clock: Clock, random: Random) -> None:
        """Answer the challenge that the relay sends first."""
        challenge = _text(await self._next(), "AUTH", 1, self.url)
        event = sign_connection_auth(secret, self.url, challenge, clock() // SECOND, random(keys.AUX_BYTES))
        await self._send(b'["AUTH",' + encode(event) + b"]")
        said = await self._next()
        if said[:2] != ["OK", event.id] or len(said) < 4:
            raise self._not_understood("it does not answer the authentication")
        if said[2] is not True:
            raise self._refused(str(said[3]))

    async def receive(self, most: int) -> list[F]:
        """The frames that have arrived, at least one and at most `most`; waits as long as the connection lasts."""
        found: list[F] = []
        while len(found) < most and not (found and self._frames.empty()):
            frame = await self._frames.get()
            if frame is None:
                self._frames.put_nowait(None)  # for the next call
                if found or self._end is None:
                    break
                raise self._end
            found.append(frame)
        return found

    async def close(self) -> None:
        """End the connection with a closing handshake, within a moment; at once if this is cancelled."""
        try:
            if self._reader is not None:
                self._reader.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._reader
            await self._connection.close()
        finally:
            self._connection.transport.abort()

    async def _read_on(self) -> None:
        try:
            while self._end is None:
                await self._frames.put(self._read(await self._connection.recv(decode=False)))
        except SocketClosed as closed:
            self._end = closed
        except ConnectionClosed as closed:
            self._end = self._closed(closed)
        await self._frames.put(None)

    async def _next_raw(self) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._connection.recv(decode=False)
        except TimeoutError as error:
            detail = f"no answer within {ANSWER_TIMEOUT_S:g} s"
            raise SocketClosed(self.url, FaultKind.TIMEOUT, detail) from error
        except ConnectionClosed as closed:
            raise self._closed(closed) from closed

    async def _next(self) -> list[Any]:
        return self._list(await self._next_raw())

    async def _send(self, text: bytes) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._connection.send(text, text=True)
        except TimeoutError as error:
            detail = f"it takes nothing within {ANSWER_TIMEOUT_S:g} s"
            raise SocketClosed(self.url, FaultKind.TIMEOUT, detail) from error
        except ConnectionClosed as closed:
            raise self._closed(closed) from closed

    def _list(self, raw: bytes) -> list[Any]:
        try:
            found = msgspec.json.decode(raw, type=list[Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._not_understood(str(error)) from error
        if found[:1] == ["NOTICE"]:
            raise self._refused(str(found[1]) if len(found) > 1 else "")
        return found

    @abstractmethod
    def _read(self, raw: bytes) -> F:
        """The frame in these bytes; raises if it is not of this socket's kind."""

    def _refused(self, text: str) -> SocketClosed:
        return SocketClosed(self.url, FaultKind.NOT_UNDERSTOOD, text[:DETAIL_CHARACTERS_MAX], refusal_in(text))

    def _not_understood(self, detail: str) -> SocketClosed:
        shown = f"it is not understood ({detail})"[:DETAIL_CHARACTERS_MAX]
        return SocketClosed(self.url, FaultKind.NOT_UNDERSTOOD, shown)

    def _closed(self, closed: ConnectionClosed) -> SocketClosed:
        code = closed.rcvd.code if closed.rcvd is not None else None
        reason = closed.rcvd.reason if closed.rcvd is not None else ""
        if code is None:
            return SocketClosed(self.url, FaultKind.CONNECTION_LOST, "the connection broke")
        detail = f"it closed the connection ({code}{f' {reason}' if reason else ''})"
        return SocketClosed(self.url, FaultKind.CONNECTION_LOST, detail, _refusal_of(code, reason))


class RelaySocket(FrameSocket[Frame]):
    """A connection that receives a member's queue."""

    async def negotiate(self) -> Negotiated:
        """The features usable with this relay. An unfit one is left with a close code for the reason, and `Refused` raised."""
        asked = {"require": features.wanted(required=True), "optional": features.wanted(required=False)}
        await self._send(msgspec.json.encode(("FEATURES", asked)))
        said = await self._features()
        try:
            return features.negotiate(said)
        except Refused as refused:
            _log.warning(
                "feature_negotiation_failed", relay=self.url, asked=asked, supported=said, detail=refused.detail
            )
            code = REFUSALS[refused.refusal].close_code or _POLICY
            with contextlib.suppress(ConnectionClosed):
                await self._connection.close(code, refused.refusal.value)
            raise

    async def _features(self) -> dict[str, dict[str, Any]]:
        raw = await self._next_raw()
        try:
            return msgspec.json.decode(raw, type=_FeaturesFrame).said.supported
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._check_lasting(raw)
            raise Refused(Refusal.FEATURE_UNAVAILABLE, "the relay does not say which features it has") from error

    def _check_lasting(self, raw: bytes) -> None:
        """Raise a temporary refusal as it is: a relay that is only busy does not lack a feature."""
        try:
            self._list(raw)
        except SocketClosed as closed:
            if closed.refusal is not None and not REFUSALS[closed.refusal].is_permanent:
                raise

    async def open_queue(self, mesh: str, epoch: bytes, *, replay: bool = False) -> QueueStatus:
        """Open our queue in a mesh; from then on `receive` returns its messages."""
        asked: dict[str, Any] = {"mesh": mesh, "epoch": epoch.hex()}
        if replay:
            asked["replay"] = True
        await self._send(msgspec.json.encode(("QUEUE", _SUBSCRIPTION, asked)))
        status = self._read(await self._next_raw())
        if not isinstance(status, QueueStatus):
            raise self._not_understood("it does not say how our queue stands")
        self._reader = asyncio.create_task(self._read_on())
        return status

    async def acknowledge(self, seqs: Sequence[int]) -> None:
        """Acknowledge messages that are on our disk; the relay confirms with an `Acknowledged` frame."""
        for start in range(0, len(seqs), ACK_SEQS_MAX):
            part = list(seqs[start : start + ACK_SEQS_MAX])
            await self._send(msgspec.json.encode(("QUEUE", _SUBSCRIPTION, "ACK", part)))

    def _read(self, raw: bytes) -> Frame:
        """The queue frame in these bytes; anything else ends the connection, because it was not asked for."""
        try:
            if queue_frames.word_of(raw) == "ERR":
                return self._told(raw)
            frame = queue_frames.read(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._list(raw)  # raises with the relay's own words if it is a notice
            raise self._not_understood(str(error)) from error
        if frame is None:
            raise self._not_understood("it uses a word of a queue that is not known here")
        return frame

    def _told(self, raw: bytes) -> AckUnknown:
        text = _text(self._list(raw), "QUEUE", 3, self.url)
        if refusal_in(text) is Refusal.ACK_UNKNOWN:
            return AckUnknown(text[:DETAIL_CHARACTERS_MAX])
        raise self._refused(text)


class _Features(msgspec.Struct):
    supported: dict[str, dict[str, Any]]


class _FeaturesFrame(msgspec.Struct, array_like=True, tag="FEATURES"):
    said: _Features


@asynccontextmanager
async def connected(
    url: str, secret: bytes, *, network: Network, clock: Clock, random: Random
) -> AsyncIterator[RelaySocket]:
    """Connect to the relay at this address (http or https) and authenticate, for a queue."""
    async with opened(RelaySocket, url, secret, network=network, clock=clock, random=random) as socket:
        yield socket


@asynccontextmanager
async def opened(
    kind: Callable[[str, ClientConnection], S],
    url: str,
    secret: bytes,
    *,
    network: Network,
    clock: Clock,
    random: Random,
) -> AsyncIterator[S]:
    """Connect and authenticate, with a socket of this class."""
    connection = await _open(url, network)
    socket = kind(url, connection)
    try:
        await socket.authenticate(secret, clock, random)
        yield socket
    finally:
        await socket.close()


async def _open(url: str, network: Network) -> ClientConnection:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection = await _connect(url, network)
            try:
                await connection.handshake()
            except BaseException:
                connection.transport.abort()
                raise
            connection.start_keepalive()
            return connection
    except TimeoutError as error:
        detail = f"no connection within {CONNECT_TIMEOUT_S:g} s"
        raise SocketClosed(url, FaultKind.TIMEOUT, detail) from error
    except (OSError, ConnectionClosed) as error:  # ConnectionClosed if it breaks before the handshake
        detail = f"no connection ({getattr(error, 'strerror', None) or error})"
        raise SocketClosed(url, FaultKind.CONNECTION_LOST, detail) from error
    except (InvalidHandshake, EOFError) as error:
        detail = f"it does not take the connection ({error})"[:DETAIL_CHARACTERS_MAX]
        raise SocketClosed(url, FaultKind.NOT_UNDERSTOOD, detail) from error


async def _connect(url: str, network: Network) -> ClientConnection:
    address = parse_uri(url.replace("http", "ws", 1))

    def make() -> ClientConnection:
        return ClientConnection(
            ClientProtocol(address, max_size=FRAME_BYTES_MAX),
            ping_interval=PING_INTERVAL_S,
            ping_timeout=PING_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
        )

    if not address.secure:
        _, connection = await network.connect(make, address.host, address.port)
        return connection
    transport, _ = await network.connect(asyncio.Protocol, address.host, address.port)
    connection = make()
    transport.set_protocol(connection)
    secured = await asyncio.get_running_loop().start_tls(
        transport, connection, ssl.create_default_context(), server_hostname=address.host
    )
    if secured is None:
        raise ConnectionError("the connection broke")
    connection.connection_made(secured)
    return connection


def _refusal_of(code: int, reason: str) -> Refusal | None:
    """The refusal behind a close: named by its reason, else by its code if only one refusal has that code."""
    with contextlib.suppress(ValueError):
        named = Refusal(reason)
        if REFUSALS[named].close_code == code:
            return named
    having = [refusal for refusal, row in REFUSALS.items() if row.close_code == code]
    return having[0] if len(having) == 1 else None


def _text(frame: list[Any], verb: str, place: int, url: str) -> str:
    if frame[:1] == [verb] and len(frame) > place and isinstance(frame[place], str):
        return str(frame[place])
    raise SocketClosed(url, FaultKind.NOT_UNDERSTOOD, f"it does not say {verb} where it must")
