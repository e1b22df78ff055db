"""The state of many documents is handed over whole, in order, and in a memory that does not grow with it.

`make scale` does it with a million snapshots, and again beside a long history; otherwise with a few thousand.
"""

import os
import threading
import time
from pathlib import Path

from tests.relay.feed_client import QUICK, Author, Feed, FeedClient, bootstrap, tail
from tests.relay.library import AT_S, fill
from tests.relay.running import running

MEASURED = os.environ.get("HOLDFAST_SCALE") == "1"
DOCUMENTS = 1_000_000 if MEASURED else 8_000
VERSIONS = 20 if MEASURED else 3
GROWTH_BYTES_MAX = 48 * 2**20  # a page, what a socket holds, and what Python keeps back


class Reader:
    """Takes a state and keeps nothing of it but whether it is in order."""

    def __init__(self, client: FeedClient) -> None:
        self.client = client
        self.count = 0
        self.began = time.perf_counter()
        self.first_s = 0.0

    def read(self) -> int:
        """Everything up to EOSE; returns its position."""
        last = (0, "")
        while True:
            frame = self.client.hear()
            if frame[2] == "SNAPSHOT":
                place = (frame[3]["created_at"], frame[3]["id"])
                assert place > last
                last = place
                self.count += 1
                self.first_s = self.first_s or time.perf_counter() - self.began
            elif frame[2] == "EOSE":
                return int(frame[3])


def test_a_state_of_any_size_takes_the_same_memory_and_stays_what_it_was(tmp_path: Path) -> None:
    author = Author()
    fill(tmp_path / "relay", author, DOCUMENTS)
    with running(tmp_path / "relay", QUICK, options=["--open-feed"]) as relay:
        feed = Feed(relay)
        _warm(feed, author)
        before = relay.memory_bytes()
        peak = before
        stop = threading.Event()

        def write() -> None:
            """Somebody edits documents from the end backwards, which were to come last, and adds new ones."""
            nonlocal peak
            number = DOCUMENTS
            while not stop.wait(0.02):
                number -= 1
                feed.put(author.snapshot(f"doc-{number:07}", {"A": 2}), author.snapshot(f"new-{number}", at_s=AT_S))
                peak = max(peak, relay.memory_bytes())

        writer = threading.Thread(target=write)
        with feed.client() as client:
            client.changes(bootstrap(author))
            reader = Reader(client)
            status = client.hear()
            writer.start()
            try:
                seq = reader.read()
            finally:
                stop.set()
                writer.join()
        assert (reader.count, seq, status[3]["snapshot_seq"]) == (DOCUMENTS, DOCUMENTS, DOCUMENTS)
        written = relay.head_seq() - DOCUMENTS
        took_s = time.perf_counter() - reader.began
        grown = max(peak, relay.memory_bytes()) - before
        print(
            f"\n{DOCUMENTS} snapshots in {took_s:.1f} s, the first after {reader.first_s * 1000:.0f} ms, beside {written} "
            f"new ones; memory {before / 2**20:.0f} MiB and {grown / 2**20:.1f} more"
        )
        assert written > 0
        assert grown < GROWTH_BYTES_MAX


def test_a_state_beside_a_long_history_is_no_larger(tmp_path: Path) -> None:
    """Most of what is there was superseded: none of it is sent, and the tail has all of it."""
    author = Author()
    documents = DOCUMENTS // VERSIONS // 5
    fill(tmp_path / "relay", author, documents, VERSIONS)
    with running(tmp_path / "relay", QUICK, options=["--open-feed"]) as relay, Feed(relay).client() as client:
        client.changes(bootstrap(author))
        reader = Reader(client)
        head = documents * VERSIONS
        assert reader.read() == head
        assert reader.count == documents
        state_s = time.perf_counter() - reader.began
        client.changes(tail(author))
        positions = (client.hear()[3] for _ in range(head))
        assert all(position == number for number, position in enumerate(positions, 1))
        client.expect_eose(head)
        print(f"\n{documents} of {head} in {state_s:.2f} s, the first after {reader.first_s * 1000:.0f} ms")


def _warm(feed: Feed, author: Author) -> None:
    """A first page, so that what a relay needs once is not counted."""
    with feed.client() as client:
        client.changes(tail(author, limit=2_000))
        client.until_eose()
