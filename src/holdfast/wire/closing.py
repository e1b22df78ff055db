"""A transport that joins small writes, delivers its last bytes before it closes, and always ends in time.

A socket that is closed while bytes of the other side are unread answers with a reset, and the reset can overtake the
answer that explains it. So a close here is a half-close: the other side sees our end and ends its own side, and what it
sends meanwhile is read and ignored. A connection that the other side does not end is aborted.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

LINGER_S = 2.0  # for the other side to end a connection that we have ended
TOGETHER_BYTES_MAX = 65_536  # that wait for the end of the loop's turn in which they were written


class LingeringTransport(asyncio.Transport):
    """A transport whose close waits for the other side, within limits."""

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop, send_timeout_s: float) -> None:
        super().__init__()
        self._inner = inner
        self._loop = loop
        self._send_timeout_s = send_timeout_s
        self._closing = False
        self._said: list[bytes] = []  # written in this turn of the loop: a head and its body, many small frames
        self._said_bytes = 0

    def close(self) -> None:
        """End our side; what was written before is still sent, within the send timeout."""
        self._flush()
        waiting = self._inner.get_write_buffer_size() > 0
        self.close_within(self._send_timeout_s if waiting else LINGER_S)

    def close_within(self, seconds: float) -> None:
        """End our side, and the whole connection at the latest after this time."""
        if self.is_closing():
            return
        self._flush()
        self._closing = True
        if not self._inner.can_write_eof():
            self._inner.close()
            return
        cut_off = self._loop.call_later(seconds, self._inner.abort)
        self._inner.set_protocol(_Ending(self._inner.get_protocol(), cut_off.cancel))
        self._inner.write_eof()
        self._inner.resume_reading()

    def abort(self) -> None:
        self._closing = True
        self._inner.abort()

    def is_closing(self) -> bool:
        return self._closing or self._inner.is_closing()

    def write(self, data: Any) -> None:
        if self._closing:
            return
        if not self._said:
            self._loop.call_soon(self._flush)
        self._said.append(data)
        self._said_bytes += len(data)
        if self._said_bytes > TOGETHER_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        """Send what was written in this turn of the loop with one system call."""
        if self._said:
            data = b"".join(self._said)
            self._said, self._said_bytes = [], 0
            if not self._inner.is_closing():
                self._inner.write(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self.close()

    def can_write_eof(self) -> bool:
        return self._inner.can_write_eof()

    def pause_reading(self) -> None:
        if not self._closing:
            self._inner.pause_reading()

    def resume_reading(self) -> None:
        if not self._closing:
            self._inner.resume_reading()

    def is_reading(self) -> bool:
        return self._inner.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._inner.get_write_buffer_size() + self._said_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._inner.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._inner.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._inner.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._inner.get_protocol()


class _Ending(asyncio.Protocol):
    """The protocol of a connection that we have ended: it ignores what still comes."""

    def __init__(self, owner: asyncio.BaseProtocol, cancel: Callable[[], None]) -> None:
        self._owner = owner
        self._cancel = cancel

    def data_received(self, data: bytes) -> None:
        pass  # nobody reads it any more

    def eof_received(self) -> None:
        pass  # both sides have ended: the transport closes

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()
