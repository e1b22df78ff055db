"""The export on the side of a relay or daemon: it asks a reader process for pages and gets them piece by piece.

A long read pins the database's journal, and Arrow is a large library: both stay in the reader process (`reader.py`). The
program asks for each piece, so a slow client delays only its own page, and the program holds at most two pieces of it. A
page's size is known before its first byte: one that breaks off raises, and never looks complete.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from importlib import import_module
from itertools import count
from typing import Protocol

import msgspec

from holdfast.export import exchange
from holdfast.export.exchange import (
    PAGE_LIMITS,
    Chunk,
    Close,
    Failed,
    Next,
    No,
    Open,
    Page,
    PageLimits,
    Query,
    Reply,
    Request,
)
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import check_range, read_integer, shown
from holdfast.store import faults
from holdfast.store.engine import Engine

CONTENT_TYPE = "application/vnd.apache.arrow.stream"

OPEN_MAX = 4
"""How many pages the reader keeps at once; further requests wait in line."""

WAITING_MAX = 64
"""How long that line may be; further requests are refused."""

REPLY_TIMEOUT_S = 60.0
"""A reader that does not reply for so long is ended: it hangs, or its disk does."""

CLOSE_TIMEOUT_S = 5.0
"""How long a reader may take to stop before it is killed."""

_PARAMETERS = ("after", "until", "columns")


class ReaderLost(faults.Fault):
    what = "the process that reads for the export ended or fell silent"
    remedy = "Ask for the page again: another one is started by itself."
    temporary = True


class Link(Protocol):
    """A connection to a reader."""

    lost: bool
    pid: int | None

    def post(self, request: Request) -> "asyncio.Future[Reply]":
        """Send a request; the future has its reply, or raises ReaderLost."""

    def abandon(self) -> None:
        """Give up the reader without waiting for it."""

    async def close(self) -> None:
        """End the reader."""


Connect = Callable[[], Awaitable[Link]]


class Export(msgspec.Struct, frozen=True):
    """One page: its description and its bytes. `chunks` gives all of them, or raises."""

    page: Page
    chunks: AsyncIterator[bytes]

    def headers(self) -> dict[str, str]:
        """The HTTP headers of this page."""
        return {
            "Content-Type": CONTENT_TYPE,
            "Content-Length": str(self.page.size),
            "Holdfast-Log-Id": self.page.log_id.hex(),
            "Holdfast-As-Of-Seq": str(self.page.as_of_seq),
            "Holdfast-Until": str(self.page.until),
            "Holdfast-Next-After": str(self.page.next_after),
            "Holdfast-Rows": str(self.page.rows),
        }


class Exporter:
    """Opens pages of one database, through a reader process that it starts when needed, and again if it died.

    `tables` is the name of the module that defines them (`EXPORTED`) and that is run as the reader process.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        tables: str,
        *,
        open_max: int = OPEN_MAX,
        waiting_max: int = WAITING_MAX,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
        connect: Connect | None = None,
    ) -> None:
        self._where = os.fspath(path)
        self.reply_timeout_s = reply_timeout_s
        self._connect = connect or (lambda: start_process(self._where, tables))
        self._slots = asyncio.Semaphore(open_max)
        self._waiting = 0
        self._waiting_max = waiting_max
        self._link: Link | None = None
        self._linking = asyncio.Lock()
        self._numbers = count(1)
        self._closed = False

    @classmethod
    def within(cls, engine: Engine, tables: str, limits: PageLimits = PAGE_LIMITS) -> "Exporter":
        """An exporter with a reader in this process, for simulations."""

        async def connect() -> Link:
            return LocalLink(engine, tables, limits)

        return cls(engine.where, tables, connect=connect)

    @asynccontextmanager
    async def open(
        self, table: str, after: int = 0, until: int | None = None, columns: tuple[str, ...] | None = None
    ) -> AsyncIterator[Export]:
        """Open one page of a table. Raises Refused for a bad request and a Fault if it cannot be read."""
        query, number = Query(table, after, until, columns), next(self._numbers)
        await self._take_slot()
        link = None
        try:
            link = await self._reader()
            page = await self._ask(link, Open(number, query))
            if not isinstance(page, Page):
                raise TypeError(f"the reader answered {type(page).__name__}")
            async with aclosing(self._chunks(link, number, page)) as chunks:
                yield Export(page, chunks)
        finally:
            if link is not None and not link.lost:
                link.post(Close(number))  # before the slot is free, so that the reader never keeps too many pages
            self._slots.release()

    @property
    def reader_pid(self) -> int | None:
        """The process id of the reader; None if there is none."""
        return self._link.pid if self._link is not None and not self._link.lost else None

    async def close(self) -> None:
        """End the reader. Open pages break off."""
        self._closed = True
        async with self._linking:  # so that a reader that is just being started is ended too
            if self._link is not None:
                await self._link.close()

    async def _take_slot(self) -> None:
        if self._slots.locked() and self._waiting >= self._waiting_max:
            raise Refused(Refusal.UNAVAILABLE, "too many exports at once")
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1

    async def _reader(self) -> Link:
        async with self._linking:
            if self._closed:
                raise faults.Closed(self._where)
            if self._link is None or self._link.lost:
                self._link = await self._connect()
            return self._link

    async def _chunks(self, link: Link, number: int, page: Page) -> AsyncGenerator[bytes, None]:
        """The bytes of a page. The next piece is requested while the last one is being sent."""
        left = page.size
        coming = link.post(Next(number))
        while left > 0:
            chunk = await self._reply(link, coming)
            if not isinstance(chunk, Chunk) or not 0 < len(chunk.data) <= left:
                raise ReaderLost(self._where, f"{left} bytes of a page are missing")
            left -= len(chunk.data)
            if left > 0:
                coming = link.post(Next(number))
            yield chunk.data

    async def _ask(self, link: Link, request: Request) -> Reply:
        return await self._reply(link, link.post(request))

    async def _reply(self, link: Link, coming: "asyncio.Future[Reply]") -> Reply:
        try:
            async with asyncio.timeout(self.reply_timeout_s):
                reply = await coming
        except TimeoutError:
            link.abandon()  # without waiting: a process that hangs on its disk cannot even be killed
            raise ReaderLost(self._where, f"no reply in {self.reply_timeout_s:g} s") from None
        if isinstance(reply, (No, Failed)):
            raise reply.exception()
        return reply


def read_query(table: str, parameters: Mapping[str, str]) -> Query:
    """The query of an HTTP request. Unknown parameters are refused: a misspelt bound would be no bound."""
    for name in parameters:
        if name not in _PARAMETERS:
            raise Refused(Refusal.RANGE_INVALID, f"unknown parameter {shown(name)}; there are {', '.join(_PARAMETERS)}")
    columns = parameters.get("columns")
    return Query(
        table,
        after=_position(parameters.get("after", "0"), "after"),
        until=_position(parameters["until"], "until") if "until" in parameters else None,
        columns=None if columns is None else tuple(columns.split(",")),
    )


def _position(text: str, what: str) -> int:
    try:
        position = read_integer(text, what)
        check_range(position, what, 0)
    except Refused as refused:
        raise Refused(Refusal.RANGE_INVALID, refused.detail) from refused
    return position


class LocalLink:
    """A link to a reader in this process, which replies at once."""

    def __init__(self, engine: Engine, tables: str, limits: PageLimits) -> None:
        from holdfast.export.reader import Reader  # here, because it imports Arrow

        self.lost = False
        self.pid: int | None = None
        self.reader = Reader(lambda: engine, import_module(tables).EXPORTED, limits)

    def post(self, request: Request) -> "asyncio.Future[Reply]":
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        reply.set_result(self.reader.answer(request))
        return reply

    def abandon(self) -> None:
        self.lost = True

    async def close(self) -> None:
        self.lost = True  # the engine is not ours to close


async def start_process(path: str, tables: str) -> Link:
    """Start a reader process for one database with these tables."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", tables, path),  # -P: import nothing from the current directory
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=exchange.CHUNK_BYTES,
        )
    except OSError as error:
        raise ReaderLost(path, f"it cannot be started: {error.strerror}") from error
    return ProcessLink(process, path)


class ProcessLink:
    """A reader process at the other end of two pipes."""

    def __init__(self, process: asyncio.subprocess.Process, where: str) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the reader needs pipes")
        self.lost = False
        self.pid: int | None = process.pid
        self._process = process
        self._requests = process.stdin
        self._replies = process.stdout
        self._where = where
        self._waiting: deque[asyncio.Future[Reply]] = deque()
        self._receiving = asyncio.create_task(self._receive(), name="holdfast-reader-replies")

    def post(self, request: Request) -> "asyncio.Future[Reply]":
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self.lost:
            _settle(reply, ReaderLost(self._where))
        else:
            self._waiting.append(reply)
            self._requests.write(exchange.frame(request))  # small, and at most one per page: no need to drain
        return reply

    def abandon(self) -> None:
        self._lose()
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        self._lose()
        self._requests.close()  # a reader ends when its requests do
        await asyncio.wait({self._receiving}, timeout=CLOSE_TIMEOUT_S)
        self.abandon()
        await asyncio.wait({self._receiving}, timeout=CLOSE_TIMEOUT_S)

    async def _receive(self) -> None:
        """Pass on replies until the process ends, then wait for it."""
        with suppress(asyncio.IncompleteReadError, OSError, msgspec.DecodeError):
            while True:
                head = await self._replies.readexactly(exchange.LENGTH_BYTES)
                reply = exchange.read_reply(await self._replies.readexactly(exchange.length(head)))
                if not self._waiting:
                    break  # a reply that nobody asked for, or nobody waits any more
                _settle(self._waiting.popleft(), reply)
        self.abandon()
        await self._process.wait()

    def _lose(self) -> None:
        self.lost = True
        while self._waiting:
            _settle(self._waiting.popleft(), ReaderLost(self._where))


def _settle(waiting: "asyncio.Future[Reply]", outcome: Reply | Exception) -> None:
    """Resolve a waiting future, unless it was cancelled."""
    if waiting.done():
        return
    if isinstance(outcome, Exception):
        waiting.set_exception(outcome)
        waiting.exception()  # retrieved, so that asyncio does not report a reply that nobody awaits
    else:
        waiting.set_result(outcome)
