"""Members send, receive and edit while the lake is brought up to date: nothing is found, for nothing is wrong."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.pages import read_head
from tests.pipeline import lakes
from tests.relay.feed_client import QUICK, Author, Feed
from tests.relay.queue_client import Friends, following
from tests.relay.running import RunningRelay, running

PAUSE_S = 0.02
TABLES = lakes.with_what_they_need(
    "orphan", "chain_break", "sequence_gap", "equivocation", "receipt_forged", "conflict"
)


@contextmanager
def _at_work(relay: RunningRelay) -> Iterator[None]:
    """A sender, a receiver and an author, for as long as the block runs; what any of them meets ends the test."""
    friends, author, numbers = Friends(relay), Author(), itertools.count()
    reading, writing = threading.Event(), threading.Event()
    jobs: list[Callable[[], None]] = [
        lambda: _again(writing, lambda: friends.send(3)),
        lambda: _again(writing, lambda: Feed(relay).put(author.snapshot(f"doc-{next(numbers) % 5}"))),
        lambda: _receive(relay, friends, reading),
    ]
    with ThreadPoolExecutor(len(jobs)) as threads:
        sender, editor, receiver = [threads.submit(job) for job in jobs]
        try:
            yield
        finally:
            reading.set()
            receiver.result()  # what is sent meanwhile wakes it
            writing.set()
        sender.result()
        editor.result()


def _again(over: threading.Event, do: Callable[[], object]) -> None:
    while not over.wait(PAUSE_S):
        do()


def _receive(relay: RunningRelay, friends: Friends, over: threading.Event) -> None:
    with following(relay, friends.bob) as client:
        while not over.is_set():
            frame = client.hear()
            if frame[2] == "MSG":
                client.say("QUEUE", client.sub, "ACK", [frame[3]])


@pytest.mark.timeout(600)
def test_nothing_is_found_while_writers_run(spark: SparkSession, tmp_path: Path, lake_path: Path) -> None:
    with running(tmp_path / "relay", QUICK, options=["--open-feed"]) as relay:
        place = lakes.place_of(relay, tmp_path)
        with _at_work(relay):
            for full in (False, True):
                outcome = lakes.run(spark, lake_path, place, full=full, tables=TABLES)
                (mark,) = outcome.kept.values()
                assert read_head(place).seq > mark.seq  # they went on while it was computed
    assert outcome.balance["delivered"] > 0
    assert lakes.findings(lake_path, TABLES) == []
