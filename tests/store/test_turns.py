"""Whose turn it is to run the next batch, when one of those who wait for it is interrupted."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.store.engine import Transaction
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.writer import Writer
from tests.store.test_writer import Gated, _in_threads, _insert, _stored

WAIT_S = 30.0  # for what must come


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Gated]:
    engine = SqliteEngine(tmp_path / "store.db")
    with engine.write() as transaction:
        transaction.script("CREATE TABLE thing (id INTEGER PRIMARY KEY) STRICT")
    yield Gated(engine)
    engine.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As on a terminal: what a shell starts in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _until_waiting(writer: Writer[int, str], count: int) -> None:
    while sum(item.waits for item in list(writer._inbox)) < count:
        time.sleep(0.001)


def test_an_interrupt_of_the_next_in_turn_leaves_it_to_the_one_behind(gated: Gated, interruptible: None) -> None:
    writer: Writer[int, str] = Writer(gated, _insert, inline=True)
    answers: list[str] = []
    gated.gate.clear()
    gated.entered.clear()
    threads = _in_threads(lambda number: answers.append(writer.ask(number)), [1])
    assert gated.entered.wait(WAIT_S)

    def interrupt() -> None:
        _until_waiting(writer, 1)  # the main thread, which stands first
        threads.extend(_in_threads(lambda number: answers.append(writer.ask(number)), [3]))
        _until_waiting(writer, 2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        writer.ask(2)
    interrupting.join(WAIT_S)
    gated.gate.set()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert sorted(answers) == ["inserted 1", "inserted 3"]
    assert _stored(gated) == [1, 2, 3]  # who stops waiting does not undo the request
    writer.close()


def test_one_at_a_time_is_woken_to_run_a_batch(gated: Gated) -> None:
    sizes: list[int] = []

    def apply(transaction: Transaction, ids: Sequence[int]) -> list[str]:
        sizes.append(len(ids))
        return _insert(transaction, ids)

    def ask(number: int) -> None:
        writer.ask(number)

    writer: Writer[int, str] = Writer(gated, apply, inline=True, batch_max=2)
    gated.gate.clear()
    gated.entered.clear()
    threads = _in_threads(ask, [0])
    assert gated.entered.wait(WAIT_S)
    threads += _in_threads(ask, list(range(1, 8)))
    _until_waiting(writer, 7)
    gated.gate.set()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert sizes == [1, 2, 2, 2, 1]
    assert _stored(gated) == list(range(8))
    writer.close()
