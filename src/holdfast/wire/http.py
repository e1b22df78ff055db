"""uvicorn's HTTP/1.1 with limits that uvicorn does not have: on time, the size of head and body, and slow readers.

A request that breaks a limit is answered, and the connection ended. If an earlier request on the connection is still being
answered, the connection ends without an answer to the bad one: the client could take it for the answer to the earlier one.
"""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from holdfast.protocol.refusal import Refusal
from holdfast.wire.closing import LingeringTransport
from holdfast.wire.lean import LeanCycle, LeanHandler, LeanRoutes
from holdfast.wire.problem import Problem, http_problem, refusal_problem
from holdfast.wire.state import ServerState

HEAD_BYTES_MAX = 32_768  # of a request line and its headers
PIPELINED_MAX = 16  # requests that may wait on a connection while one is answered
REFUSED_MAX = 128  # connections over the limit that are being told so; further ones are aborted


class HttpProtocol(HttpToolsProtocol):
    """One HTTP connection."""

    server_state: ServerState

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = server_state.limits
        self.timeout_keep_alive = self._limits.idle_timeout_s  # type: ignore[assignment]  # a timer takes fractions
        self._lean_routes: LeanRoutes = server_state.lean_routes
        self._deadline: asyncio.TimerHandle | None = None  # until which the request must be complete
        self._slow: asyncio.TimerHandle | None = None  # until which the other side must take what was written
        self._deaf = False  # nothing more is read; the connection ends after the answer under way
        self._in_head = True
        self._head_bytes = 0
        self._body_bytes = 0
        self._held_bytes = 0  # of the shared budget

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        lingering = LingeringTransport(transport, self.loop, self._limits.send_timeout_s)
        if len(self.connections) >= self._limits.connections_max:
            self._turn_away(lingering)
            return
        super().connection_made(lingering)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self._give_back()
        super().connection_lost(exc)
        self.server_state.left(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._in_head:
            self._head_bytes += len(data)
        if self.cycle is None or self.cycle.response_complete:
            self._start_deadline()
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = self._body_bytes = 0
        self._start_deadline()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._deaf or self.transport.is_closing():
            return
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > HEAD_BYTES_MAX:
            self._refuse(_head_too_large())
            return
        announced = next((value for name, value in self.headers if name == b"content-length"), b"0")
        if int(announced) > self._limits.request_bytes_max:
            self._refuse(self._body_too_large())
            return
        self.server_state.refresh_date()
        handler = self._lean_handler()
        if handler is None:
            super().on_headers_complete()
        else:
            self._begin_lean(handler)
        if len(self.pipeline) >= PIPELINED_MAX:
            self.cycle.keep_alive = False  # the last request that is answered; later ones are not read

    def on_body(self, body: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.request_bytes_max:
            self._refuse(self._body_too_large())
        elif self.server_state.bodies.take_now(len(body)):
            self._held_bytes += len(body)
            cycle: Any = self.cycle
            if isinstance(cycle, LeanCycle):
                cycle.parts.append(body)  # the whole body is read first, within the limits above
            else:
                super().on_body(body)
        else:
            detail = "too many large requests at once"
            self._refuse(refusal_problem(Refusal.UNAVAILABLE, detail, retry_after_s=1))

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._stop_deadline()
        if not (self._deaf or self.transport.is_closing()):
            super().on_message_complete()
            self._deaf = len(self.pipeline) >= PIPELINED_MAX
            cycle: Any = self.cycle
            if isinstance(cycle, LeanCycle) and cycle.may_begin:
                self._start_lean(cycle)

    def on_response_complete(self) -> None:
        self._give_back()
        super().on_response_complete()

    def _lean_handler(self) -> LeanHandler | None:
        """The handler of this request if its route is lean; None otherwise."""
        handler = self._lean_routes.get((self.parser.get_method(), self.url))
        if handler is None or self.expect_100_continue or self.parser.should_upgrade():
            return None
        return handler if self.parser.get_http_version() == "1.1" else None

    def _begin_lean(self, handler: LeanHandler) -> None:
        before, cycle = self.cycle, LeanCycle(handler, self.headers, self.parser.should_keep_alive())
        self.cycle = cycle  # type: ignore[assignment]  # it has the attributes that uvicorn's protocol uses
        if before is None or before.response_complete:
            cycle.has_turn = True
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))  # type: ignore[arg-type]  # likewise

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if not isinstance(cycle, LeanCycle):
            super()._start_asgi_task(cycle, app)
            return
        cycle.has_turn = True
        if cycle.may_begin:
            self._start_lean(cycle)

    def _start_lean(self, cycle: LeanCycle) -> None:
        promised: Any = cycle.ask(self.client)  # a future, kept with uvicorn's tasks
        self.tasks.add(promised)
        promised.add_done_callback(lambda done: self._end_lean(cycle, done))

    def _end_lean(self, cycle: LeanCycle, promised: Any) -> None:
        self.tasks.discard(promised)
        if not promised.cancelled():
            date = self.server_state.default_headers
            cycle.answer(promised.result(), self.transport, date, self.on_response_complete)

    def handle_websocket_upgrade(self) -> None:
        self._stop_timers()
        super().handle_websocket_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        pass  # a request to upgrade to an unknown protocol is answered in HTTP

    def send_400_response(self, msg: str) -> None:
        self._refuse(http_problem(HTTPStatus.BAD_REQUEST, msg))

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # the other side did not even take its last answer
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._slow is None:
            self._slow = self.loop.call_later(self._limits.send_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _turn_away(self, transport: LingeringTransport) -> None:
        self.transport = transport
        if len(self.server_state.refused) >= REFUSED_MAX:
            transport.abort()
            return
        self.server_state.refused.add(self)
        self._deaf = True
        transport.write(_response(refusal_problem(Refusal.TOO_MANY_CONNECTIONS, retry_after_s=1)))
        transport.close()

    def _refuse(self, problem: Problem) -> None:
        """Answer the request that is being read, and end the connection."""
        cycle = self.cycle
        busy = cycle is not None and not cycle.response_complete
        self._deaf = True
        self._stop_deadline()
        if busy and not cycle.more_body:
            cycle.keep_alive = False  # an earlier request is still being answered
            return
        if busy:
            cycle.disconnected = True  # the application reads no more, and what it still sends is dropped
            cycle.message_event.set()
            self._give_back()  # at once: the next request may need the bytes that this one was refused for
        if not (busy and (cycle.response_started or self.pipeline)):
            self.transport.write(_response(problem))
        self.transport.close()

    def _start_deadline(self) -> None:
        if self._deadline is None and not self._deaf:
            self._deadline = self.loop.call_later(self._limits.request_timeout_s, self._too_slow)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.flow.read_paused:
            self._start_deadline()  # again: we are the ones who paused reading
            return
        detail = f"the request was not complete within {self._limits.request_timeout_s:g} seconds"
        self._refuse(http_problem(HTTPStatus.REQUEST_TIMEOUT, detail))

    def _stop_timers(self) -> None:
        self._unset_keepalive_if_required()
        self._stop_deadline()
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _give_back(self) -> None:
        self.server_state.bodies.give(self._held_bytes)
        self._held_bytes = 0

    def _body_too_large(self) -> Problem:
        detail = f"request: at most {self._limits.request_bytes_max} bytes are allowed"
        return refusal_problem(Refusal.TOO_LARGE, detail)


def _head_too_large() -> Problem:
    detail = f"the request line and headers may have {HEAD_BYTES_MAX} bytes together"
    return http_problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail)


def _response(problem: Problem) -> bytes:
    """The bytes of a whole answer, the last one of its connection."""
    headers = [*problem.all_headers(), (b"connection", b"close")]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[problem.status] + lines + b"\r\n" + problem.body
