"""Server-sent events: every entry of the device's history, in order, and whether the relay is connected.

The id of an event is a cursor, the log's id and the entry's position. A reader that comes back with Last-Event-ID goes on
exactly there, even after a restart of the daemon. If the home was restored, so that its log has another entry there, the
cursor is refused. Events about the connection tell of the present only, and have no id.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from holdfast.device.daemon import Daemon
from holdfast.device.forks import Fork, kept_through
from holdfast.device.ipc_documents import cursor
from holdfast.device.room import RoomState
from holdfast.protocol.history import LOG_ID_BYTES, Entry, Kind, Restored
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import check_hex, check_range, read_integer, shown
from holdfast.store import history
from holdfast.store.engine import Transaction
from holdfast.store.statements import Statements
from holdfast.wire.route import NotAllowed, Request

_SQL = Statements(__package__, "ipc.sql")

CONTENT_TYPE = "text/event-stream"
STREAMS_MAX = 32
KEEP_ALIVE_S = 15.0
PAGE_ROWS = 200  # entries that are sent at once

_HIDDEN = frozenset({"detail", "chain"})  # of use only with the whole history, which the export has


class EventStream(msgspec.Struct, frozen=True):
    """One open stream."""

    chunks: AsyncIterator[bytes]

    def headers(self) -> dict[str, str]:
        return {"content-type": CONTENT_TYPE, "cache-control": "no-store"}


class Events:
    """The event streams of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._ending = asyncio.Event()
        self.open_count = 0

    def end(self) -> None:
        """End every stream; its reader reconnects where it stopped."""
        self._ending.set()

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[EventStream]:
        """The stream that a request asks for."""
        if request.method != "GET":
            raise NotAllowed(["GET"])
        kinds = _kinds(request.query.get("kinds"))
        after = self._start(request.headers.get("last-event-id") or request.query.get("after"))
        if self.open_count >= STREAMS_MAX:
            raise Refused(Refusal.TOO_MANY_STREAMS, f"{STREAMS_MAX} event streams are open")
        no_room = self._daemon.room.for_stream()
        if no_room is not None:
            raise no_room
        self.open_count += 1
        try:
            async with aclosing(self._chunks(after, kinds)) as chunks:
                yield EventStream(chunks)
        finally:
            self.open_count -= 1

    def _start(self, given: str | None) -> int:
        """The position to start after: the given cursor's, or the present end; refuses a cursor that is not valid."""
        head = self._daemon.look(history.head)
        if given is None:
            return head.seq
        log_id, after = _cursor(given)
        if log_id not in (None, head.log_id) and after > self._shared_through(log_id):
            detail = f"position {after} of log {log_id.hex()} is not in this one, {head.log_id.hex()}"
            raise Refused(Refusal.OTHER_LOG, detail)
        if after > head.seq:
            raise Refused(Refusal.CURSOR_AHEAD, f"the history ends at {head.seq}")
        if after < head.anchor_seq:
            raise Refused(Refusal.RANGE_PRUNED, f"the first entries are pruned; go on after {head.anchor_seq}")
        return after

    def _shared_through(self, log_id: bytes) -> int:
        """The last position that an earlier log shares with this one, which was restored from its copy; -1 if none."""
        found = self._daemon.look(lambda tx: tx.rows(_SQL["restored"]))
        restored = [Restored.decode(detail) for (detail,) in found]
        kept = kept_through(log_id, [Fork(one.old_log_id, one.fork_seq) for one in restored])
        return -1 if kept is None else kept

    async def _chunks(self, after: int, kinds: frozenset[Kind]) -> AsyncGenerator[bytes, None]:
        version, state, room = self._daemon.changes.version, None, RoomState()
        yield b": holdfast\n\n"
        while not self._ending.is_set():
            if state != self._daemon.state.link:
                state = self._daemon.state.link
                yield _event(state.value, msgspec.to_builtins(self._daemon.state))
            if room.pressure is not self._daemon.room.state.pressure:
                room = self._daemon.room.state
                yield _event(f"outbox_pressure_{room.pressure}", msgspec.to_builtins(room))
            log_id, page = self._page(after)
            if page:
                after = page[-1].seq
                if said := b"".join(_entry_events(log_id, page, kinds)):
                    yield said
                continue
            changed = await self._change(version)
            if changed is None:
                yield b": still here\n\n"
            else:
                version = changed

    def _page(self, after: int) -> tuple[bytes, list[Entry]]:
        """The id of the log, which changes when the device takes a new epoch, and its next entries."""

        def read(transaction: Transaction) -> tuple[bytes, list[Entry]]:
            return history.head(transaction).log_id, history.read(transaction, after, after + PAGE_ROWS, PAGE_ROWS)

        return self._daemon.look(read)

    async def _change(self, version: int) -> int | None:
        """Wait for a change; returns its version, or None after a silence in which a keep-alive is due."""
        waits = [
            asyncio.ensure_future(self._daemon.changes.wait(version)),
            asyncio.ensure_future(self._ending.wait()),
        ]
        try:
            done, _ = await asyncio.wait(waits, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            return (int(waits[0].result()) if waits[0] in done else version) if done else None
        finally:
            for wait in waits:
                wait.cancel()


def document(entry: Entry) -> dict[str, Any]:
    """An entry as a JSON object: fields with a value only, bytes in hex."""
    found = {name: getattr(entry, name) for name in entry.__struct_fields__ if name not in _HIDDEN}
    return {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in found.items()
        if value is not None and value != ()
    }


def _entry_events(log_id: bytes, page: Iterable[Entry], kinds: frozenset[Kind]) -> Iterable[bytes]:
    for entry in page:
        if not kinds or entry.kind in kinds:
            yield _event(entry.kind, document(entry), cursor(log_id.hex(), entry.seq))


def _event(name: str, data: object, cursor: str | None = None) -> bytes:
    head = b"" if cursor is None else b"id: " + cursor.encode() + b"\n"
    return head + b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


def _cursor(text: str) -> tuple[bytes | None, int]:
    """The log id and position of a cursor; None and the position, if it is a bare position of the present log."""
    log_id, _, position = text.rpartition(":")
    try:
        after = read_integer(position, "Last-Event-ID")
        check_range(after, "Last-Event-ID", 0)
        if log_id:
            check_hex(log_id, "Last-Event-ID", LOG_ID_BYTES)
    except Refused as refused:
        raise Refused(Refusal.RANGE_INVALID, refused.detail) from refused
    return bytes.fromhex(log_id) if log_id else None, after


def _kinds(text: str | None) -> frozenset[Kind]:
    """The kinds of entries that a request asks for; an empty set means all."""
    if text is None:
        return frozenset()
    try:
        return frozenset(Kind(name) for name in text.split(","))
    except ValueError as error:
        raise Refused(Refusal.MALFORMED, f"kinds: {shown(text)} is not a list of kinds of entries") from error
