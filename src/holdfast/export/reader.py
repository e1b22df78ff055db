"""The reader process: pages of tables as Arrow IPC streams, read in one short transaction each.

A program's module of tables, run with a PATH, answers requests on its standard input until the program closes it or dies.
A page is whole in memory before its first byte is sent, so a slow client never prolongs the transaction. The rows and
bytes of a page are limited, and it always ends between two positions, so that pages join without a gap.
"""

import bisect
import gc
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from io import FileIO, RawIOBase
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types

from holdfast.export import exchange
from holdfast.export.exchange import (
    CHUNK_BYTES,
    PAGE_LIMITS,
    Chunk,
    Closed,
    Failed,
    No,
    Open,
    Page,
    PageLimits,
    Query,
    Reply,
    Request,
)
from holdfast.export.selection import Selection, Table
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.store import faults, history
from holdfast.store.engine import Engine, Row, Transaction

IDLE_S = 10.0
"""After so long without a request the reader returns unused memory to the system."""

_ALL = 2**62  # a limit that means all rows


class Reader:
    """Reads pages and keeps them until they are fetched. One thread, one request at a time."""

    def __init__(
        self, open_engine: Callable[[], Engine], tables: Mapping[str, Table], limits: PageLimits = PAGE_LIMITS
    ) -> None:
        self._open_engine = open_engine
        self._tables = tables
        self._limits = limits
        self._engine: Engine | None = None
        self._pages: dict[int, Iterator[Chunk]] = {}

    @property
    def held(self) -> int:
        """How many pages are kept."""
        return len(self._pages)

    def answer(self, request: Request) -> Reply:
        match request:
            case Open():
                return self._open(request)
            case exchange.Next():
                return next(self._pages[request.number])
            case exchange.Close():
                self._pages.pop(request.number, None)
                return Closed()

    def rest(self) -> None:
        """Return unused memory to the system; called after a while without requests."""
        pa.default_memory_pool().release_unused()

    def close(self) -> None:
        self._pages.clear()
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _open(self, request: Open) -> Reply:
        try:
            if self._engine is None:
                self._engine = self._open_engine()
            page, stream = read_page(self._engine, self._tables, request.query, self._limits)
        except Refused as refused:
            return No(refused.refusal, refused.detail)
        except faults.Fault as fault:
            return Failed(type(fault).__name__, fault.where, fault.detail)
        self._pages[request.number] = _chunks(stream)
        return page


def read_page(
    engine: Engine, tables: Mapping[str, Table], query: Query, limits: PageLimits = PAGE_LIMITS
) -> tuple[Page, memoryview]:
    """A page of a table, and the bytes of its Arrow IPC stream."""
    selection = Selection.of(tables, query.table, query.columns)
    with engine.read() as transaction:
        head = history.head(transaction)
        until = _checked_until(query, head)
        try:
            next_after, batches = _read(transaction, selection, query.after, until, limits)
        except (ValueError, msgspec.DecodeError) as error:  # a row has invalid text or JSON
            raise faults.Corrupt(transaction.where, f"table {query.table}: {error}") from error
    rows = sum(batch.num_rows for batch in batches)
    page = Page(query.table, head.log_id, head.seq, query.after, until, next_after, rows, 0)
    stream = _stream(page, selection, batches)
    return msgspec.structs.replace(page, size=len(stream)), stream


def _checked_until(query: Query, head: history.Head) -> int:
    """The end of the range; refused if the range cannot be read without a gap."""
    until = head.seq if query.until is None else query.until
    if query.after < 0:
        raise Refused(Refusal.RANGE_INVALID, f"after {query.after} is under 0")
    if max(query.after, until) > head.seq:
        raise Refused(Refusal.CURSOR_AHEAD, f"the log ends at {head.seq}")
    if query.after > until:
        raise Refused(Refusal.RANGE_INVALID, f"after {query.after} is past until {until}")
    if query.table == "history" and query.after < head.anchor_seq:
        raise Refused(
            Refusal.RANGE_PRUNED,
            f"the first entries are pruned; ask after {head.anchor_seq}. A lake that was read into before has them.",
        )
    return until


def _read(
    transaction: Transaction, selection: Selection, after: int, until: int, limits: PageLimits
) -> tuple[int, list[Any]]:
    """Read as much of a range as fits into a page: the position it reaches, and its record batches."""
    batches: list[Any] = []
    steps: list[Any] = []
    rows, size = 0, 0
    while after < until and rows < limits.page_rows and size < limits.page_bytes:
        rows_max = min(limits.step_rows, limits.page_rows - rows)
        found, reached = _step(transaction, selection, after, until, rows_max)
        if rows > 0 and rows + len(found) > limits.page_rows:
            break  # the next position has very many rows: it starts the next page
        after = reached
        steps.append(selection.batch(found))
        rows += len(found)
        size += steps[-1].nbytes
        if sum(step.num_rows for step in steps) >= limits.batch_rows:
            batches.append(pa.concat_batches(steps))
            steps.clear()
    return after, [*batches, pa.concat_batches(steps)] if steps else batches


def _step(
    transaction: Transaction, selection: Selection, after: int, until: int, rows_max: int
) -> tuple[list[Row], int]:
    """The next rows, and the position up to which they are complete: the rows of one position stay together."""
    found = _fetch(transaction, selection, after, until, rows_max + 1)
    if len(found) <= rows_max:
        return found, until
    torn = found[rows_max][0]
    whole = bisect.bisect_left(found, torn, key=lambda row: row[0])
    if whole > 0:
        return found[:whole], torn - 1
    return _fetch(transaction, selection, torn - 1, torn, _ALL), torn


def _fetch(transaction: Transaction, selection: Selection, after: int, until: int, limit: int) -> list[Row]:
    return transaction.rows(selection.statement, {"after": after, "until": until, "limit": limit})


def _stream(page: Page, selection: Selection, batches: list[Any]) -> memoryview:
    """The page as an Arrow stream, whose metadata describe it and say how many rows it must have."""
    told = msgspec.structs.asdict(page) | {"log_id": page.log_id.hex()}
    schema = selection.schema.with_metadata({name: str(value) for name, value in told.items() if name != "size"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(sink.getvalue())


def _chunks(stream: memoryview) -> Iterator[Chunk]:
    for start in range(0, len(stream), CHUNK_BYTES):
        yield Chunk(bytes(stream[start : start + CHUNK_BYTES]))


def serve(reader: Reader, requests: RawIOBase, replies: BinaryIO) -> None:
    """Answer requests until they end."""
    try:
        while body := _next_request(requests, reader):
            replies.write(exchange.frame(reader.answer(exchange.read_request(body))))
            replies.flush()
    finally:
        reader.close()


def _next_request(requests: RawIOBase, reader: Reader) -> bytes:
    """The next request; empty if there are no more, or if the program died in the middle of one."""
    if not select.select([requests], [], [], IDLE_S)[0]:
        reader.rest()
    head = _exactly(requests, exchange.LENGTH_BYTES)
    return _exactly(requests, exchange.length(head)) if head else b""


def _exactly(requests: RawIOBase, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = requests.read(count - len(found))
        if not more:
            return b""
        found += more
    return found


def main(open_engine: Callable[[str], Engine], tables: Mapping[str, Table]) -> None:
    """Run as the reader process of the database named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is meant for the program, which then ends this process
    # A page is millions of objects without cycles: with the default the collector would take a third of the time.
    gc.set_threshold(200_000)
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # anything printed must not get between the replies
    requests = FileIO(sys.stdin.fileno(), closefd=False)  # unbuffered: `select` does not see buffered bytes
    try:
        serve(Reader(lambda: open_engine(sys.argv[1]), tables), requests, replies)
    except BrokenPipeError:
        os._exit(1)  # the program is gone
