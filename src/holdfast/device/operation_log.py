"""`OperationLog`: the durable record of everything a device sent, usable on its own.

A call that returned is on disk. Any number of threads may share one log, and any number of processes one file.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.device import database, operations
from holdfast.device.operations import SEQUENCE_MAX, Appending, Entry, SequencesExhausted, SequenceTaken
from holdfast.device.together import Shared, carry_out
from holdfast.protocol.fingerprint import OBJECT_ID_BYTES
from holdfast.store.engine import Transaction
from holdfast.store.sqlite import MEMORY, SqliteEngine
from holdfast.store.world import Clock, Random, wall_clock
from holdfast.store.writer import Writer

BLOB_BYTES_MAX = 1_048_576
"""The largest blob an entry may hold, in bytes."""

T = TypeVar("T")
_Request = Callable[[Transaction], Any]


class InvalidEntry(ValueError):
    """An argument that no entry can have; nothing was written."""


class OperationLog:
    """The log of everything that a device sent, by one global sequence; its outbox is what the relay has not confirmed.

    The sequences of one object are not contiguous: the counter is the device's, so other objects' entries lie between.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = wall_clock,
        random: Random = os.urandom,
        open_engine: Callable[[str | os.PathLike[str]], SqliteEngine] = SqliteEngine,
    ) -> None:
        """Open or create the log at `path`. A backup that is opened as a log takes a new epoch."""
        if os.fspath(path) == MEMORY:
            raise InvalidEntry("an operation log lives in a file: what is only in memory is not kept")
        self._clock = clock
        self._random = random
        self._engine = open_engine(path)
        try:
            database.prepare(self._engine, clock, random)
            with self._engine.read() as transaction:
                self._epoch = operations.epoch(transaction)
        except BaseException:
            self._engine.close()
            raise
        self._writer: Writer[_Request, Any] = Writer(self._engine, carry_out, inline=True)

    @property
    def epoch(self) -> bytes:
        """16 bytes minted when the log was created or restored: (epoch, sequence) names a send for ever."""
        return self._epoch

    def append(self, object_id: bytes, sequence: int, blob: bytes) -> bool:
        """Record a blob; returns whether it was written. If (object_id, sequence) is there already, the first blob stays."""
        object_id, sequence, blob = _object_id(object_id), _sequence(sequence), _blob(blob)
        return self._do(lambda tx: operations.append(tx, self._clock(), self._random, object_id, sequence, blob))

    def append_next(self, object_id: bytes, blob: bytes) -> int:
        """Record a blob under the next sequence; returns the sequence."""
        object_id, blob = _object_id(object_id), _blob(blob)
        return self._do(_AppendNext(self._clock, self._random, object_id, blob))

    def mark_delivered(self, object_id: bytes, sequence: int) -> bool:
        """Note that the relay has confirmed an entry; returns whether it was in the outbox. An unknown entry is no error."""
        object_id, sequence = _object_id(object_id), _sequence(sequence)
        return self._do(lambda tx: operations.mark_delivered(tx, self._clock(), object_id, sequence))

    def outbox(self, *, after: int = -1, limit: int | None = None) -> list[Entry]:
        """The entries not delivered yet, by sequence; `after` and `limit` select a page."""
        after, limit = _after(after), _limit(limit)
        with self._engine.read() as transaction:
            return operations.outbox(transaction, after, limit)

    def entries_from(self, object_id: bytes, sequence: int, *, limit: int | None = None) -> list[Entry]:
        """One object's entries from a sequence on, in order, including delivered ones."""
        object_id, sequence, limit = _object_id(object_id), _sequence(sequence), _limit(limit)
        with self._engine.read() as transaction:
            return operations.entries_of_object(transaction, object_id, sequence - 1, limit)

    def max_sequence(self) -> int | None:
        """The greatest sequence ever recorded, or None in an empty log."""
        with self._engine.read() as transaction:
            return operations.max_sequence(transaction)

    def next_sequence(self) -> int:
        """The sequence that `append_next` would use now. Advisory: another writer may take it first."""
        with self._engine.read() as transaction:
            return operations.next_sequence(transaction)

    def prune_blobs(self, through: int) -> int:
        """Drop the blobs of delivered entries up to a sequence, to save space; returns how many. The entries stay."""
        through = _sequence(through)
        return self._do(lambda tx: operations.prune_blobs(tx, through))

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the log into a new file. The copy takes a new epoch when it is opened as a log."""
        database.back_up(self._engine, Path(path))

    def close(self) -> None:
        """Finish what is under way and close the file."""
        self._writer.close()
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, request: "Callable[[Transaction], T | SequencesExhausted]") -> T:
        asked = request if isinstance(request, Shared) else partial(_outcome, request)
        answer: T | SequenceTaken | SequencesExhausted = self._writer.ask(asked)
        if isinstance(answer, SequenceTaken | SequencesExhausted):
            raise answer
        return answer


class _AppendNext(Shared[int | SequencesExhausted]):
    """A request to record a blob under the next sequence."""

    def __init__(self, clock: Clock, random: Random, object_id: bytes, blob: bytes) -> None:
        self._clock = clock
        self._random = random
        self._object_id = object_id
        self._blob = blob

    @classmethod
    def together(cls, transaction: Transaction, requests: Sequence[Self]) -> list[int | SequencesExhausted]:
        appending = Appending(transaction, requests[0]._clock(), requests[0]._random)
        answers = [request._next(appending) for request in requests]
        appending.write()
        return answers

    def _next(self, appending: Appending) -> int | SequencesExhausted:
        try:
            return appending.next(self._object_id, self._blob)
        except SequencesExhausted as refused:
            return refused  # returned, not raised: it wrote nothing, so the rest of its batch need not be run again


def _outcome(request: _Request, transaction: Transaction) -> Any:
    try:
        return request(transaction)
    except (SequenceTaken, SequencesExhausted) as refused:
        return refused  # for the same reason


def _object_id(value: bytes) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidEntry(f"object_id must be {OBJECT_ID_BYTES} bytes, not {type(value).__name__}")
    if memoryview(value).nbytes != OBJECT_ID_BYTES:
        raise InvalidEntry(f"object_id must be {OBJECT_ID_BYTES} bytes, not {memoryview(value).nbytes}")
    return bytes(value)


def _sequence(value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidEntry(f"sequence must be an integer, not {type(value).__name__}")
    if not 0 <= value <= SEQUENCE_MAX:
        raise InvalidEntry(f"sequence must be between 0 and {SEQUENCE_MAX}, not {value}")
    return value


def _after(value: int) -> int:
    return -1 if isinstance(value, int) and value == -1 else _sequence(value)


def _limit(value: int | None) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= SEQUENCE_MAX):
        raise InvalidEntry(f"limit must be a positive integer, not {value!r}")
    return value


def _blob(value: bytes) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidEntry(f"blob must be bytes, not {type(value).__name__}")
    if memoryview(value).nbytes > BLOB_BYTES_MAX:
        raise InvalidEntry(f"blob has {memoryview(value).nbytes} bytes, more than the {BLOB_BYTES_MAX} allowed")
    return bytes(value)
