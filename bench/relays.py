"""One relay and two on the same PostgreSQL: how many messages do they accept?

    .venv/bin/python bench/relays.py [--seconds 15] [--rounds 3] [--writers 8] [--together 20]

Writers are processes that sign beforehand, so that what is measured is the relays and their database. One relay and two take
turns in one run, because a machine that is shared is not the same from one minute to the next: compare within a run only. What
relays and database took of processor time for a message depends least on who else uses the machine.
Needs the development tools, which bring PostgreSQL.
"""

import argparse
import http.client
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Event as Signal
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' server and people

from bench.processor import used_s
from tests.people import raw
from tests.postgres import running_server
from tests.relay.pair import two_relays
from tests.relay.queue_client import Friends

GENEROUS = "[limits]\nqueue_messages_max = 1000000\nmessages_burst = 1000000\nmessages_per_s = 1000000\n"
SIGNED_PER_S = 1_500  # of one writer: more than it gets rid of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--together", type=int, default=20, help="messages in one request")
    asked = parser.parse_args()
    folders = tempfile.TemporaryDirectory()
    with folders as folder, running_server() as server, two_relays(Path(folder), server, GENEROUS) as pair:
        found: dict[int, list[float]] = {1: [], 2: []}
        costs: dict[int, list[float]] = {1: [], 2: []}
        database = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
        pids = [*(relay.process.pid for relay in pair.relays), database]
        for _ in range(asked.rounds):
            for relays in (1, 2):
                urls = [pair[number % relays].url for number in range(asked.writers)]
                worlds = [Friends(pair[0]) for _ in urls]
                used, head = sum(map(used_s, pids)), pair[0].head_seq()
                rate = measured(urls, worlds, asked.seconds, asked.together)
                cost = (sum(map(used_s, pids)) - used) / (pair[0].head_seq() - head) * 1e6
                found[relays].append(rate)
                costs[relays].append(cost)
                print(
                    f"{relays} relay{'s' if relays > 1 else ' '}: {rate:,.0f} messages/s, {cost:,.0f} µs each",
                    flush=True,
                )
    one, two = (statistics.median(found[relays]) for relays in (1, 2))
    print(f"median: one {one:,.0f}, two {two:,.0f}, ratio {two / one:.2f}")
    one, two = (statistics.median(costs[relays]) for relays in (1, 2))
    print(f"processor time of relays and database, each: one {one:,.0f} µs, two {two:,.0f} µs, ratio {two / one:.2f}")


def measured(urls: list[str], worlds: list[Friends], seconds: int, together: int) -> float:
    """Messages accepted in a second by all, while all of them write."""
    context = multiprocessing.get_context("spawn")
    begin = context.Event()
    counts = context.SimpleQueue()
    ready = context.Semaphore(0)
    writers = []
    for url, world in zip(urls, worlds, strict=True):
        count = SIGNED_PER_S * seconds // len(urls) // together * together
        batches = [
            b"[" + b",".join(raw(world.alice.message(world.bob, b"x" * 200)) for _ in range(together)) + b"]"
            for _ in range(count // together)
        ]
        writers.append(context.Process(target=_write, args=(url, batches, begin, ready, counts, seconds)))
    for writer in writers:
        writer.start()
    for _ in writers:
        ready.acquire()
    begin.set()
    accepted = [counts.get() for _ in writers]
    for writer in writers:
        writer.join()
    return sum(accepted)


def _write(url: str, batches: list[bytes], begin: Signal, ready: object, counts: object, seconds: int) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    ready.release()  # type: ignore[attr-defined]
    begin.wait()
    accepted, began = 0, time.monotonic()
    for batch in batches:
        if time.monotonic() - began > seconds:
            break
        connection.request("POST", "/v1/messages", batch)
        answers = json.loads(connection.getresponse().read())["answers"]
        accepted += sum(answer["status"] == 201 for answer in answers)
    counts.put(accepted / (time.monotonic() - began))  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
