"""The single writer: one commit for all that wait, an answer only after it, and no pretending when it fails."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.store import faults
from holdfast.store.engine import ConstraintViolated, Engine, Transaction, Watch
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.writer import Writer
from tests.disk import Disk

PATIENCE_S = 60.0  # for what must come
DISK_S = 0.01  # of a disk on which nobody is done before the others have asked
INSERT = "INSERT INTO thing VALUES (:id)"


class Gated:
    """An engine whose transactions start, and end, only when the test opens the gates; commits are counted."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.where = engine.where
        self.is_shared = engine.is_shared
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.commit_gate = threading.Event()
        self.commit_gate.set()
        self.written = threading.Event()
        self.disk_s = 0.0  # that a commit takes besides
        self.commits = 0

    @contextmanager
    def write(self, *, brief: bool = False) -> Iterator[Transaction]:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        with self._engine.write() as transaction:
            yield transaction
            self.written.set()
            assert self.commit_gate.wait(PATIENCE_S)
            time.sleep(self.disk_s)
        self.commits += 1

    def read(self) -> AbstractContextManager[Transaction]:
        return self._engine.read()

    def prepare(self) -> None:
        self._engine.prepare()

    def damage(self) -> list[str]:
        return self._engine.damage()

    def watch(self, told: Callable[[], None]) -> Watch:
        return self._engine.watch(told)

    def close(self) -> None:
        self._engine.close()


def _insert(transaction: Transaction, ids: Sequence[int]) -> list[str]:
    """Insert the ids; a negative one is a request that fails halfway through its work."""
    for number in ids:
        transaction.run(INSERT, {"id": number})
        if number < 0:
            raise ValueError(f"no {number} here")
    return [f"inserted {number}" for number in ids]


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Gated]:
    engine = SqliteEngine(tmp_path / "store.db")
    engine.prepare()
    with engine.write() as transaction:
        transaction.script("CREATE TABLE thing (id INTEGER PRIMARY KEY) STRICT")
    yield Gated(engine)
    engine.close()


@pytest.fixture(params=["thread", "inline"])
def writer(request: pytest.FixtureRequest, gated: Gated) -> Iterator[Writer[int, str]]:
    made: Writer[int, str] = Writer(gated, _insert, inline=request.param == "inline")
    yield made
    gated.gate.set()
    made.close()


def _stored(engine: Engine) -> list[int]:
    with engine.read() as transaction:
        return [number for (number,) in transaction.rows("SELECT id FROM thing ORDER BY id")]


def _in_threads(work: Callable[[int], None], numbers: Sequence[int]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    return threads


def _ask_all(writer: Writer[int, str], gated: Gated, numbers: Sequence[int]) -> dict[int, str | BaseException]:
    """Have the first request hold the writer while the others gather, so that they become one batch."""
    answers: dict[int, str | BaseException] = {}

    def ask(number: int) -> None:
        try:
            answers[number] = writer.ask(number)
        except Exception as error:
            answers[number] = error

    gated.gate.clear()
    gated.entered.clear()
    threads = _in_threads(ask, numbers[:1])
    assert gated.entered.wait(PATIENCE_S)
    threads += _in_threads(ask, numbers[1:])
    while len(writer._inbox) < len(numbers) - 1:
        time.sleep(0.001)
    gated.gate.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "somebody was never answered"
    return answers


def test_a_request_is_answered_and_on_disk(writer: Writer[int, str], gated: Gated) -> None:
    assert writer.ask(7) == "inserted 7"
    assert _stored(gated) == [7]


def test_requests_that_wait_share_one_commit(writer: Writer[int, str], gated: Gated) -> None:
    answers = _ask_all(writer, gated, range(20))
    assert answers == {number: f"inserted {number}" for number in range(20)}
    assert gated.commits == 2


def test_a_failing_request_fails_alone_and_leaves_nothing(writer: Writer[int, str], gated: Gated) -> None:
    answers = _ask_all(writer, gated, [1, 2, -3, 4])
    assert isinstance(answers.pop(-3), ValueError)
    assert answers == {1: "inserted 1", 2: "inserted 2", 4: "inserted 4"}
    assert _stored(gated) == [1, 2, 4]


def test_a_broken_constraint_fails_one_request_alone(writer: Writer[int, str], gated: Gated) -> None:
    writer.ask(2)
    with pytest.raises(ConstraintViolated):
        writer.ask(2)
    assert writer.ask(3) == "inserted 3"


def test_nobody_is_answered_before_the_commit(gated: Gated) -> None:
    writer: Writer[int, str] = Writer(gated, _insert)
    gated.commit_gate.clear()
    answered = threading.Event()

    def ask(number: int) -> None:
        writer.ask(number)
        answered.set()

    (thread,) = _in_threads(ask, [1])
    assert gated.written.wait(PATIENCE_S), "its rows are in the transaction, and only the commit is missing"
    assert not answered.wait(0.05)
    gated.commit_gate.set()
    thread.join(PATIENCE_S)
    assert answered.is_set()
    writer.close()


def test_no_batch_is_larger_than_its_limit(gated: Gated) -> None:
    sizes: list[int] = []

    def apply(transaction: Transaction, ids: Sequence[int]) -> list[str]:
        sizes.append(len(ids))
        return _insert(transaction, ids)

    writer: Writer[int, str] = Writer(gated, apply, batch_max=8)
    _ask_all(writer, gated, range(21))
    writer.close()
    assert sum(sizes) == 21
    assert max(sizes) == 8


def test_callers_beyond_the_limit_wait_outside(gated: Gated) -> None:
    writer: Writer[int, str] = Writer(gated, _insert, inbox_max=3)
    gated.gate.clear()
    threads = _in_threads(lambda number: (writer.ask(number), None)[1], range(10))
    time.sleep(0.1)
    assert len(writer._inbox) <= 3
    gated.gate.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert _stored(gated) == list(range(10))
    writer.close()


def test_tasks_beyond_the_limit_wait_outside_even_when_callers_lose_patience(gated: Gated) -> None:
    async def scenario() -> None:
        writer: Writer[int, str] = Writer(gated, _insert, inbox_max=3)
        gated.gate.clear()
        tasks = [asyncio.create_task(writer.ask_soon(number)) for number in range(10)]
        await asyncio.sleep(0.05)
        for task in tasks[:5]:
            task.cancel()
        await asyncio.sleep(0.05)
        assert len(writer._inbox) <= 3
        gated.gate.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert answers[5:] == [f"inserted {number}" for number in range(5, 10)]
        await asyncio.to_thread(writer.close)

    asyncio.run(scenario())
    assert set(_stored(gated)) >= {0, 1, 2, 5, 6, 7, 8, 9}, "a request that was let in is carried out"


def test_an_event_loop_gets_its_answers(writer: Writer[int, str], gated: Gated) -> None:
    async def scenario() -> list[str | BaseException]:
        return await asyncio.gather(*(writer.ask_soon(n) for n in [1, 2, -3, 4]), return_exceptions=True)

    first, second, failed, fourth = asyncio.run(scenario())
    assert (first, second, fourth) == ("inserted 1", "inserted 2", "inserted 4")
    assert isinstance(failed, ValueError)
    assert _stored(gated) == [1, 2, 4]


def test_closing_finishes_what_was_let_in(gated: Gated) -> None:
    writer: Writer[int, str] = Writer(gated, _insert)
    gated.gate.clear()
    gated.entered.clear()
    answers: list[str] = []
    threads = _in_threads(lambda number: answers.append(writer.ask(number)), [0])
    assert gated.entered.wait(PATIENCE_S)
    threads += _in_threads(lambda number: answers.append(writer.ask(number)), [1, 2, 3, 4])
    while len(writer._inbox) < 4:
        time.sleep(0.001)
    closing = threading.Thread(target=writer.close)
    closing.start()
    gated.gate.set()
    closing.join(PATIENCE_S)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(answers) == 5
    assert _stored(gated) == list(range(5))


def test_a_closed_writer_says_so(writer: Writer[int, str]) -> None:
    writer.close()
    with pytest.raises(faults.Closed):
        writer.ask(1)
    with pytest.raises(faults.Closed):
        asyncio.run(writer.ask_soon(1))


def test_an_interrupt_of_whoever_runs_the_batch_leaves_no_other_caller_waiting(gated: Gated) -> None:
    def apply(transaction: Transaction, ids: Sequence[int]) -> list[str]:
        if 13 in ids:
            raise KeyboardInterrupt
        return _insert(transaction, ids)

    writer: Writer[int, str] = Writer(gated, apply, inline=True)
    answers: dict[int, BaseException | str] = {}

    def ask(number: int) -> None:
        try:
            answers[number] = writer.ask(number)
        except BaseException as error:
            answers[number] = error

    gated.gate.clear()
    gated.entered.clear()
    threads = _in_threads(ask, [1])
    assert gated.entered.wait(PATIENCE_S)
    threads += _in_threads(ask, [13, 2, 3])
    while len(writer._inbox) < 3:
        time.sleep(0.001)
    gated.gate.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert answers.pop(1) == "inserted 1"
    kinds = {type(answer) for answer in answers.values()}
    assert kinds <= {KeyboardInterrupt, faults.Unanswered}
    assert KeyboardInterrupt in kinds
    assert _stored(gated) == [1]


def _on_disk(disk: Disk) -> tuple[SqliteEngine, Writer[int, str]]:
    engine = SqliteEngine("store", vfs=disk.boot(), exclusive=True)
    engine.prepare()
    if "thing" not in _tables(engine):
        with engine.write() as transaction:
            transaction.script("CREATE TABLE thing (id INTEGER PRIMARY KEY) STRICT")
    return engine, Writer(engine, _insert, inline=True)


def _tables(engine: Engine) -> set[str]:
    with engine.read() as transaction:
        return transaction.tables()


def test_a_full_disk_fails_the_request_loudly_and_the_next_one_is_tried_anew() -> None:
    disk = Disk()
    engine, writer = _on_disk(disk)
    assert writer.ask(1) == "inserted 1"

    def full(step: int, what: str) -> None:
        if what == "write":
            raise apsw.FullError("no space")

    disk.trouble = full
    for _ in range(2):
        with pytest.raises(faults.DiskFull, match="Free some space"):
            writer.ask(2)
    disk.trouble = lambda step, what: None
    assert writer.ask(2) == "inserted 2"
    assert _stored(engine) == [1, 2]
    engine.close()


def test_after_a_failed_sync_nothing_is_taken_until_the_store_is_opened_again() -> None:
    disk = Disk()
    engine, writer = _on_disk(disk)
    assert writer.ask(1) == "inserted 1"

    def broken(step: int, what: str) -> None:
        if what == "sync":
            raise apsw.IOError("sync failed")

    disk.trouble = broken
    with pytest.raises(faults.DiskFailed):
        writer.ask(2)
    disk.trouble = lambda step, what: None
    with pytest.raises(faults.DiskFailed, match="open this file again"):
        writer.ask(3)  # the disk looks well again, but what it kept of the failed commit is unknown
    engine.close()
    engine, writer = _on_disk(disk)
    assert 1 in _stored(engine)
    assert 3 not in _stored(engine)
    assert writer.ask(4) == "inserted 4"
    engine.close()


def test_a_failed_sync_fails_the_whole_batch() -> None:
    disk = Disk()
    engine, _ = _on_disk(disk)
    gated = Gated(engine)
    writer: Writer[int, str] = Writer(gated, _insert)

    def broken(step: int, what: str) -> None:
        if what == "sync" and gated.commits == 1:
            raise apsw.IOError("sync failed")

    disk.trouble = broken
    answers = _ask_all(writer, gated, range(6))
    assert answers.pop(0) == "inserted 0"
    assert {type(answer) for answer in answers.values()} == {faults.DiskFailed}
    assert len({id(answer) for answer in answers.values()}) == 5, "each caller gets an exception of its own"
    disk.trouble = lambda step, what: None
    writer.close()
    engine.close()


def test_an_io_error_at_any_step_of_a_commit_is_never_answered_with_success() -> None:
    """Fail the n-th write or sync, for every n: an answer of success means the row is there after a power cut."""
    failures = 0
    for nth in range(1, 40):
        disk = Disk()
        engine, writer = _on_disk(disk)
        start = disk.steps

        def broken(step: int, what: str, nth: int = nth, start: int = start) -> None:
            if step == start + nth:
                raise apsw.IOError("failed")

        disk.trouble = broken
        said = []
        for number in range(1, 8):
            try:
                writer.ask(number)
                said.append(number)
            except faults.DiskFailed:
                failures += 1
        disk.cut()
        disk.trouble = lambda step, what: None
        engine, _ = _on_disk(disk)
        assert set(said) <= set(_stored(engine)), f"step {nth}"
        assert engine.damage() == []
        engine.close()
    assert failures > 40


def test_threads_and_an_event_loop_may_share_an_inline_writer(gated: Gated) -> None:
    writer: Writer[int, str] = Writer(gated, _insert, inline=True)

    async def scenario() -> list[str]:
        return [await writer.ask_soon(number) for number in range(1000, 1100)]

    def ask_many(first: int) -> None:
        for number in range(100):
            writer.ask(first + number)

    threads = _in_threads(ask_many, [0, 100, 200])
    assert asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))[-1] == "inserted 1099"
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert len(_stored(gated)) == 400


def test_threads_that_ask_at_once_share_commits(gated: Gated) -> None:
    writer: Writer[int, str] = Writer(gated, _insert, inline=True)

    def ask_many(first: int) -> None:
        for number in range(20):
            writer.ask(first * 1000 + number)

    gated.disk_s = DISK_S
    threads = _in_threads(ask_many, range(16))
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(_stored(gated)) == 320
    assert gated.commits < 200, "most commits served one caller only"


def test_too_few_answers_are_a_bug_that_everybody_hears_of(gated: Gated) -> None:
    writer: Writer[int, str] = Writer(gated, lambda transaction, ids: [])
    with pytest.raises(RuntimeError, match="0 answers to 1 requests"):
        writer.ask(1)
    assert _stored(gated) == []
    writer.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_writer_that_died(gated: Gated) -> None:
    def apply(transaction: Transaction, ids: Sequence[int]) -> list[str]:
        raise SystemExit

    writer: Writer[int, str] = Writer(gated, apply)
    with pytest.raises(faults.Unanswered):
        writer.ask(1)
    assert writer._thread is not None
    writer._thread.join(PATIENCE_S)
    with pytest.raises(faults.Closed):
        writer.ask(2)


def test_an_event_loop_that_ended_with_requests_under_way_leaves_room_for_the_next(gated: Gated) -> None:
    writer: Writer[int, str] = Writer(gated, _insert, inbox_max=2)

    async def impatient() -> None:
        gated.gate.clear()
        for number in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(writer.ask_soon(number), 0.01)

    async def patient() -> str:
        return await asyncio.wait_for(writer.ask_soon(9), PATIENCE_S)

    asyncio.run(impatient())
    gated.gate.set()
    assert asyncio.run(patient()) == "inserted 9"
    writer.close()


def test_an_interrupt_at_the_very_start_of_a_batch_wedges_nothing(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer: Writer[int, str] = Writer(gated, _insert, inline=True)
    take = writer._take

    def interrupted(batch: list[Any]) -> bool:
        take(batch)
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.ask(1)
    monkeypatch.undo()
    assert writer.ask(2) == "inserted 2"
    assert _stored(gated) == [2]


def test_what_comes_before_a_later_batch_runs_shares_its_commit(gated: Gated) -> None:
    due: list[Callable[[], None]] = []
    writer: Writer[int, str] = Writer(gated, _insert, later=due.append)

    async def ask() -> list[str]:
        asked = [asyncio.create_task(writer.ask_soon(number)) for number in (1, 2, 3)]
        await asyncio.sleep(0)
        assert (len(due), gated.commits) == (1, 0)
        assert not any(task.done() for task in asked)
        due.pop()()
        return await asyncio.gather(*asked)

    assert asyncio.run(ask()) == ["inserted 1", "inserted 2", "inserted 3"]
    assert gated.commits == 1
    writer.close()


def test_who_cannot_wait_is_answered_before_what_is_to_run_later(gated: Gated) -> None:
    due: list[Callable[[], None]] = []
    writer: Writer[int, str] = Writer(gated, _insert, later=due.append)

    async def ask() -> str:
        asked = asyncio.create_task(writer.ask_soon(1))
        await asyncio.sleep(0)
        assert writer.ask(2) == "inserted 2"
        return await asked

    assert asyncio.run(ask()) == "inserted 1"
    due.pop()()  # finds nothing more to do
    assert (due, gated.commits) == ([], 1)
    writer.close()


def test_what_comes_while_a_batch_waits_for_its_turn_is_in_it(gated: Gated) -> None:
    waits, may_begin = threading.Event(), threading.Event()

    def begin(transaction: Transaction) -> None:
        waits.set()
        assert may_begin.wait(PATIENCE_S)

    writer: Writer[int, str] = Writer(gated, _insert, begin=begin, batch_max=3)
    (first,) = _in_threads(lambda number: (writer.ask(number), None)[1], [1])
    assert waits.wait(PATIENCE_S)
    others = _in_threads(lambda number: (writer.ask(number), None)[1], [2, 3, 4])
    while len(writer._inbox) < len(others):
        time.sleep(0.001)
    may_begin.set()
    for thread in (first, *others):
        thread.join(PATIENCE_S)
    writer.close()
    assert _stored(gated) == [1, 2, 3, 4]
    assert gated.commits == 2, "a batch of three, which is full, and the fourth"


def test_those_who_are_put_together_share_a_commit_and_each_is_told(writer: Writer[int, str], gated: Gated) -> None:
    told: list[tuple[int, object]] = []

    async def scene() -> None:
        done = asyncio.Event()

        def hear(number: int, outcome: object) -> None:
            told.append((number, outcome))
            if len(told) == 3:
                done.set()

        writer.put([(number, partial(hear, number)) for number in (1, 2, 3)])
        await asyncio.wait_for(done.wait(), PATIENCE_S)

    asyncio.run(scene())
    assert told == [(number, (f"inserted {number}",)) for number in (1, 2, 3)]
    assert gated.commits == 1


def test_one_who_stumbles_over_an_outcome_keeps_it_from_nobody_else(writer: Writer[int, str]) -> None:
    trouble: list[object] = []

    def stumble(outcome: object) -> None:
        raise ValueError(outcome)

    async def scene() -> object:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: trouble.append(context["exception"]))
        second: asyncio.Future[object] = loop.create_future()
        writer.put([(1, stumble), (2, second.set_result)])
        return await asyncio.wait_for(second, PATIENCE_S)

    assert asyncio.run(scene()) == ("inserted 2",)
    assert [type(one) for one in trouble] == [ValueError]


def test_who_puts_something_into_a_closed_writer_is_told(writer: Writer[int, str]) -> None:
    writer.close()
    told: list[object] = []

    async def scene() -> None:
        writer.put([(1, told.append), (2, told.append)])

    asyncio.run(scene())
    assert [type(one) for one in told] == [faults.Closed] * 2
