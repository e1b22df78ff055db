"""The single writer: takes all waiting requests, runs them in one transaction, commits once, answers all.

One sync then serves many requests. An answer leaves only after the commit that holds its effects; if a commit fails, none
of its requests is answered with success.

It runs on a thread of its own, or inline: then one of the waiting callers runs the batch for all, and another one the next
batch. The inline form needs no thread and costs a lone caller no more than a plain transaction. In a third form, for
simulations, `later` schedules the batches on the caller's event loop, delayed by the time that the simulated disk takes.
"""

import asyncio
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from holdfast.store import faults
from holdfast.store.engine import Engine, Transaction

INBOX_MAX = 1_000
"""How many requests of all threads, and of each event loop, may be under way; further callers wait."""

BATCH_MAX = 1_000
"""How many requests share one commit at most, which bounds a caller's wait."""

Q = TypeVar("Q")
A = TypeVar("A")

Apply = Callable[[Transaction, Sequence[Q]], Sequence[A]]
"""Carries out requests inside a transaction and answers each, in order. If it raises, it is called again with one at a time."""

Outcome = tuple[A] | BaseException
"""The answer to a request, or the exception that it failed with."""

Told = Callable[[tuple[A] | BaseException], None]
"""Called with the outcome of a request, on the caller's event loop."""

Later = Callable[[Callable[[], None]], None]
"""Schedules a call for later on the caller's event loop."""


class Writer(Generic[Q, A]):
    """The writer of one store; every change goes through it."""

    def __init__(
        self,
        engine: Engine,
        apply: Apply[Q, A],
        *,
        inline: bool = False,
        later: Later | None = None,
        begin: Callable[[Transaction], object] | None = None,
        inbox_max: int = INBOX_MAX,
        batch_max: int = BATCH_MAX,
    ) -> None:
        """`begin` runs first in every transaction. Requests that arrive while it waits for another process join the batch."""
        self._engine = engine
        self._begin = begin
        self._apply = apply
        self._inbox_max = inbox_max
        self._batch_max = batch_max
        self._process = os.getpid()
        # Used as a semaphore; it is implemented in C, and so faster than one.
        self._thread_slots: SimpleQueue[None] = SimpleQueue()
        for _ in range(inbox_max):
            self._thread_slots.put(None)
        self._loop_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._inbox: deque[_Item[Q, A]] = deque()
        self._guard = threading.Lock()  # guards the inbox, _closed and _busy
        self._bell = _Bell()  # wakes our thread
        self._closed = False
        self._busy = False  # a batch is running
        self._later = later
        self._is_due = False  # a batch is scheduled
        is_threaded = not inline and later is None
        self._thread = (
            threading.Thread(target=self._serve, name="holdfast-writer", daemon=True) if is_threaded else None
        )
        if self._thread is not None:
            self._thread.start()

    def ask(self, request: Q) -> A:
        """Carry out a request: returns its answer when the effects are on disk, and raises if they are not."""
        self._stay_in_process()
        self._thread_slots.get()
        try:
            item: _Item[Q, A] = _Item(request)
            self._put([item], now=True)
            return item.result()
        finally:
            self._thread_slots.put(None)

    async def ask_soon(self, request: Q) -> A:
        """`ask` for an event loop. Cancelling the wait does not undo the request."""
        self._stay_in_process()
        loop = asyncio.get_running_loop()
        slots = self._loop_slots.get(loop) or self._loop_slots.setdefault(loop, asyncio.Semaphore(self._inbox_max))
        await slots.acquire()
        reply: asyncio.Future[A] = loop.create_future()

        def told(outcome: "Outcome[A]") -> None:  # in quotes: the type would be built again for every request
            # The slot is freed by the answer, not when the caller gives up; otherwise the inbox would not be bounded.
            slots.release()
            if not reply.done():  # the caller may have been cancelled
                _settle(reply, outcome)

        self.put([(request, told)])
        return await reply

    def put(self, requests: "Sequence[tuple[Q, Told[A]]]") -> None:
        """Queue requests without waiting; each `told` is called with its outcome. The caller limits how many are in flight.

        They go into one batch, unless it is full, and all outcomes are told in one turn of the loop.
        """
        self._stay_in_process()
        loop = asyncio.get_running_loop()
        items = [_Item(request, told, loop) for request, told in requests]
        try:
            self._put(items)
        except faults.Closed as fault:
            _answer(items, [fault.again() for _ in items])

    def close(self) -> None:
        """Refuse new requests, finish those that wait, and stop. Every accepted request is answered."""
        with self._guard:
            self._closed = True
            self._bell.ring()
        if self._thread is not None:
            self._thread.join()
        while self._inbox:
            self._run_batch()

    def _put(self, items: "Sequence[_Item[Q, A]]", *, now: bool = False) -> None:
        """Queue requests. `now` runs the batch at once: its caller blocks the loop on which a scheduled batch would run."""
        with self._guard:
            if self._closed:
                raise faults.Closed(self._engine.where)
            self._inbox.extend(items)
            if self._thread is not None:
                self._bell.ring()
                return
        if self._later is None or now:
            self._lead_until_taken(items[-1])  # the others are taken before it
        else:
            self._run_later(self._later)

    def _run_later(self, later: Later) -> None:
        if not self._is_due:
            self._is_due = True
            later(self._run_due)

    def _run_due(self) -> None:
        self._is_due = False
        self._run_batch()
        if self._inbox and self._later is not None:
            self._run_later(self._later)

    def _serve(self) -> None:
        try:
            while self._something_to_do():
                self._run_batch()
        finally:  # whatever ended this thread, no caller may wait for ever
            self._abandon()

    def _something_to_do(self) -> bool:
        while True:
            is_closed = self._closed  # read first: once closed, the inbox takes nothing more
            if self._inbox:
                return True
            if is_closed:
                return False
            self._bell.wait()

    def _abandon(self) -> None:
        with self._guard:
            self._closed = True
            left = list(self._inbox)
            self._inbox.clear()
        _answer(left, [faults.Closed(self._engine.where) for _ in left])

    def _lead_until_taken(self, item: "_Item[Q, A]") -> None:
        """Run batches, or wait while another caller runs one, until this item was taken into a batch."""
        try:
            item.waits = True
            while not item.taken:
                self._run_batch()
                if not item.taken:
                    item.turn.acquire()
        except BaseException:
            with self._guard:
                item.waits = False
                self._give_turn()  # we may have been given the turn, and the others wait for it
            raise

    def _give_turn(self) -> None:
        """Let one waiting caller run the next batch; only one, because the others would wake for nothing."""
        if not self._busy:
            next_ = next((item for item in self._inbox if item.waits), None)
            if next_ is not None:
                next_.wake()

    def _run_batch(self) -> None:
        """Run the waiting requests as one batch, unless another caller runs one."""
        batch: list[_Item[Q, A]] = []  # `_take` fills it before it sets _busy: an interrupt in between loses neither
        outcomes: list[Outcome[A]] | None = None
        try:
            if self._take(batch):
                outcomes = self._carry_out(batch, joins=True)
        finally:  # after an interrupt, the other callers of this batch must not wait for ever
            if batch:
                lost = [faults.Unanswered(self._engine.where) for _ in batch]
                _answer(batch, lost if outcomes is None else outcomes)
                with self._guard:
                    self._busy = False
                    self._give_turn()

    def _take(self, batch: "list[_Item[Q, A]]") -> bool:
        """Fill the next batch and claim the right to run it; False if another caller runs one or nothing waits."""
        with self._guard:
            if self._busy or not self._inbox:
                return False
            self._fill(batch)
            self._busy = True
            return True

    def _fill(self, batch: "list[_Item[Q, A]]") -> None:
        for _ in range(min(len(self._inbox), self._batch_max - len(batch))):
            batch.append(self._inbox.popleft())
            batch[-1].taken = True

    def _carry_out(self, batch: "list[_Item[Q, A]]", *, joins: bool = False) -> "list[Outcome[A]]":
        """Carry out a batch in one transaction; if a request fails, each in its own, so that only that one fails."""
        try:
            with self._engine.write(brief=True) as transaction:
                self._begin_batch(transaction, batch, joins)
                answers = self._apply(transaction, [item.request for item in batch])
                if len(answers) != len(batch):
                    raise RuntimeError(f"{len(answers)} answers to {len(batch)} requests")
        except faults.Fault as fault:  # the store failed, not one request: nothing of the batch is on disk
            return [fault.again() for _ in batch]
        except Exception as error:  # raised to the caller of the request
            if len(batch) == 1:
                return [error]
            return [outcome for item in batch for outcome in self._carry_out([item])]
        return [(answer,) for answer in answers]

    def _begin_batch(self, transaction: Transaction, batch: "list[_Item[Q, A]]", joins: bool) -> None:
        if self._begin is not None:
            self._begin(transaction)
            if joins:
                with self._guard:
                    self._fill(batch)

    def _stay_in_process(self) -> None:
        if self._process != os.getpid():  # before any lock: a thread of the parent may have held it at the fork
            raise faults.Forked(self._engine.where)


class _Bell:
    """Wakes the writer's thread; a ring while it is not waiting counts for the next wait. Ring only with the guard held."""

    def __init__(self) -> None:
        # Held until it rings. A lock, because a condition takes several lock operations for this.
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        if self._silent.locked():
            self._silent.release()

    def wait(self) -> None:
        self._silent.acquire()


class _Item(Generic[Q, A]):
    """A queued request: who waits for it, and whether it is in a batch yet."""

    __slots__ = ("loop", "outcome", "request", "taken", "told", "turn", "waits")

    def __init__(self, request: Q, told: Told[A] | None = None, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.request = request
        self.told = told  # called on `loop`; a thread waits for `turn` instead
        self.loop = loop
        self.outcome: Outcome[A] | None = None
        self.taken = False
        self.waits = False  # its caller waits and can run a batch; False again if the caller was interrupted
        self.turn = threading.Lock()  # released when there is an outcome, or a batch to run
        self.turn.acquire()

    def wake(self) -> None:
        with suppress(RuntimeError):  # it was woken already
            self.turn.release()

    def result(self) -> A:
        """Wait for the outcome and return or raise it; for threads only."""
        while self.outcome is None:
            self.turn.acquire()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome[0]


def _answer(items: "Sequence[_Item[Q, A]]", outcomes: Sequence[Outcome[A]]) -> None:
    of_loops: dict[asyncio.AbstractEventLoop, list[tuple[Told[A], Outcome[A]]]] = defaultdict(list)
    for item, outcome in zip(items, outcomes, strict=True):
        item.outcome = outcome
        if item.told is not None and item.loop is not None:
            of_loops[item.loop].append((item.told, outcome))
        item.wake()
    for loop, pairs in of_loops.items():
        _tell_in(loop, pairs)


def _tell_in(loop: asyncio.AbstractEventLoop, pairs: "list[tuple[Told[A], Outcome[A]]]") -> None:
    """Wake an event loop once for the whole batch."""

    def tell_all() -> None:
        for told, outcome in pairs:
            try:
                told(outcome)
            except Exception as error:  # the others must still be told theirs
                loop.call_exception_handler({"message": "told an outcome", "exception": error})

    if loop is _running_loop():
        tell_all()
    else:
        with suppress(RuntimeError):  # the loop has ended, and so have all its callers
            loop.call_soon_threadsafe(tell_all)


def _settle(reply: asyncio.Future[A], outcome: Outcome[A]) -> None:
    if isinstance(outcome, BaseException):
        reply.set_exception(outcome)
    else:
        reply.set_result(outcome[0])


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
