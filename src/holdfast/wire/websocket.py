"""uvicorn's WebSockets with timeouts: for a message that never ends, a peer that does not read, and a peer that is gone.

When the server closes, the application may finish: instead of the next message it gets a disconnect with code 1012, sends
what it still has to send, and closes with that code.
"""

import asyncio
import http
import logging
import struct
from collections import deque
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.frames import CloseCode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from holdfast.protocol.refusal import REFUSALS, Refusal
from holdfast.wire.closing import LINGER_S, LingeringTransport
from holdfast.wire.problem import http_problem
from holdfast.wire.state import ServerState

_TEXT = 0x81  # first byte of a frame: final, text
_MEDIUM, _LONG = 126, 127  # instead of a length: the length follows in two bytes, or in eight
_SHORT_BYTES_MAX, _MEDIUM_BYTES_MAX = 126, 65_536
_short_head = struct.Struct(">BB").pack
_medium_head = struct.Struct(">BBH").pack
_long_head = struct.Struct(">BBQ").pack

PING_SHARE = 0.4  # of the idle timeout: after it a ping is sent; the rest is left for the pong

PARSED_BYTES = 16_384
"""How much is parsed at once. The smallest messages are six bytes: parsed, they take a hundred times the room, and long."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket connection."""

    transport: LingeringTransport  # the same as before the upgrade

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._state = server_state
        self._limits = server_state.limits
        self._slow: asyncio.TimerHandle | None = None  # until which the other side must take what was written
        self._unfinished: asyncio.TimerHandle | None = None  # until which a begun message must be complete
        self._unparsed: deque[bytes] = deque()  # until the application has taken the messages before it
        self.conn = _Handshake(max_size=self._limits.frame_bytes_max, logger=logging.getLogger("uvicorn.error"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_slow()
        self._stop_unfinished()
        super().connection_lost(exc)
        self._state.left(self)

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:
            self._unparsed.extend(data[at : at + PARSED_BYTES] for at in range(0, len(data), PARSED_BYTES))
            self._parse()
            return
        super().data_received(data)
        if not self.handshake_initiated:  # the handshake could not be read or was too large
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def _parse(self) -> None:
        """Parse a piece of what has come, and the next one in the next turn of the loop, because others wait meanwhile.

        After a piece with messages for the application, the next one waits until it has taken them.
        """
        if self._unparsed and not (self.read_paused or self.transport.is_closing()):
            super().data_received(self._unparsed.popleft())
        if self.transport.is_closing():
            return
        if self._within_message() and self._unfinished is None:
            self._unfinished = self.loop.call_later(self._limits.request_timeout_s, self._never_ends)
        if self.read_paused:
            return
        if self._unparsed:
            self.transport.pause_reading()
            self.loop.call_soon(self._parse)
        else:
            self.transport.resume_reading()

    async def receive(self) -> ASGIReceiveEvent:
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._parse()
        return message

    def send_receive_event_to_app(self) -> None:
        self._stop_unfinished()
        if self.curr_msg_data_type != "text" or _is_text(b"".join(self.frames)):
            super().send_receive_event_to_app()
            return
        self.frames = []
        if self.conn.state is State.OPEN:  # in the same piece may be the other side's close, or another such text
            self.conn.send_close(CloseCode.INVALID_DATA)
            self.handle_parser_exception()

    async def send(self, message: ASGISendEvent) -> None:
        if not self.writable.is_set():
            await self.writable.wait()
        if self.close_sent or self.disconnected:  # the server, another task of the application, or the peer ended it
            raise ClientDisconnected
        text = message.get("text") if message["type"] == "websocket.send" else None
        if isinstance(text, str) and self.handshake_complete and self.conn.state is State.OPEN:
            # A fast path: a backlog is thousands of texts, and a server's frame needs no mask.
            self.transport.write(text_frame(text.encode()))
            return
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # it was refused; otherwise uvicorn would log that there was no answer
        elif message["type"] == "websocket.close":
            self._unparsed.clear()  # nobody hears it
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._slow is None:
            self._slow = self.loop.call_later(self._limits.send_timeout_s, self._does_not_read)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_slow()

    def handle_ping(self) -> None:
        pong = self.conn.data_to_send()
        if self.writable.is_set():  # a peer that does not read would let the pongs pile up
            self.transport.write(b"".join(pong))

    def keepalive_timeout(self) -> None:
        if self.read_paused or self._unparsed:  # we paused reading, and the pong may be among the unread bytes
            self.pong_timer = None
            self.schedule_ping()
        else:
            super().keepalive_timeout()

    def shutdown(self) -> None:
        """Let the application finish what it has begun; it closes the connection itself."""
        self.stop_keepalive()
        if self.transport.is_closing():
            return
        if self.close_sent or not self.handshake_complete:
            super().shutdown()
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": CloseCode.SERVICE_RESTART})

    def _within_message(self) -> bool:
        return self.conn.current_size is not None or len(self.conn.reader.buffer) > 0

    def _never_ends(self) -> None:
        self._unfinished = None
        if self.read_paused:
            return  # we paused reading; the next bytes restart the timer
        if self._within_message():
            self._cut(Refusal.SLOW_WRITER)

    def _does_not_read(self) -> None:
        self._slow = None
        self._cut(Refusal.SLOW_READER)

    def _cut(self, refusal: Refusal) -> None:
        """Send a close with the reason, in case the peer reads it, and end the connection soon."""
        code = REFUSALS[refusal].close_code or CloseCode.POLICY_VIOLATION
        if not self.close_sent and not self.transport.is_closing():
            self.conn.fail(code, refusal.value)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code})
        self.transport.close_within(LINGER_S)

    def _stop_slow(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _stop_unfinished(self) -> None:
        if self._unfinished is not None:
            self._unfinished.cancel()
            self._unfinished = None


def text_frame(data: bytes) -> bytes:
    """A server's frame with a whole text message."""
    if len(data) < _SHORT_BYTES_MAX:
        return _short_head(_TEXT, len(data)) + data
    if len(data) < _MEDIUM_BYTES_MAX:
        return _medium_head(_TEXT, _MEDIUM, len(data)) + data
    return _long_head(_TEXT, _LONG, len(data)) + data


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Handshake(ServerProtocol):
    """The server's handshake, whose rejections are problem documents."""

    def reject(self, status: http.HTTPStatus | int, text: str) -> Response:
        problem = http_problem(http.HTTPStatus(status), text.partition("\n")[0])
        response = super().reject(status, text)
        response.headers = Headers({name.decode(): value.decode() for name, value in problem.all_headers()})
        response.headers["Connection"] = "close"
        response.body = problem.body
        return response
