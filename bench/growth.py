"""As the store grows: what an accept, a flush and a replay cost with ten thousand messages in the store, and with a million.

    .venv/bin/python -m bench.growth

Two relays of each kind, one small and one large, in turns. BENCH_GROWTH=100000 makes the large one smaller. Needs 4 GB of disk.
"""

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.accept import CLIENTS
from bench.feed import _apart, _replay
from bench.flush import QUICK, flushed
from bench.load import http_post, measure
from bench.processor import with_processor
from bench.rounds import RATE_MAX, ROUNDS, SECONDS, Contest, in_rounds, say
from bench.world import GENEROUS, Mesh
from tests.relay.crowd import gather
from tests.relay.feed_client import Author
from tests.relay.library import fill
from tests.relay.running import RunningRelay, running

SMALL = 10_000
LARGE = int(os.environ.get("BENCH_GROWTH", "1000000"))
EACH = 1_000  # messages that wait for one member
REPLAYED = 10_000
COST_MAX = 1.5
MEMORY_MB_MAX = 300


def main() -> None:
    contest = Contest("growth", "a second, with few and with many messages in the store")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hfbench")))
        turns: dict[str, Callable[[], None]] = {}
        relays: dict[int, RunningRelay] = {}
        for size in (SMALL, LARGE):
            say(f" a store of {size:,} messages, and one of {size:,} snapshots")
            place = folder / str(size)
            place.mkdir()
            gather(place / "queues", max(size // EACH, ROUNDS + 1), EACH)
            fill(place / "feed", Author("reader"), size)
            relays[size] = stack.enter_context(running(place / "queues", GENEROUS + QUICK))
            feed = stack.enter_context(running(place / "feed", GENEROUS, options=["--open-feed"]))
            turns |= _turns(contest, size, relays[size], feed)
        in_rounds(turns)
        memory_mb = relays[LARGE].memory_bytes() / 1e6
        contest.those[f"flush {LARGE}"].more["memory_mb"] = round(memory_mb)
    for path in ("accept", "flush", "feed"):
        few, many = contest.median(f"{path} {SMALL}"), contest.median(f"{path} {LARGE}")
        cost = None if not few or not many else few / many
        contest.goal(f"{path}: a message costs at most 1.5 times as much", cost, COST_MAX, at_most=True)
    contest.goal(f"memory of a relay with {LARGE:,} queued under 300 MB", memory_mb, MEMORY_MB_MAX, at_most=True)
    contest.finish()


def _turns(contest: Contest, size: int, relay: RunningRelay, feed: RunningRelay) -> dict[str, Callable[[], None]]:
    mesh = Mesh(relay, CLIENTS)
    members = iter(range(ROUNDS + 1))
    reader = Author("reader")

    def accept() -> None:
        pages = [
            [http_post("/v1/messages", raw) for raw in page] for page in mesh.signed(int(RATE_MAX * SECONDS / CLIENTS))
        ]
        found = with_processor(relay.process.pid, lambda: measure("http", relay.address, pages, SECONDS))
        contest.of(f"accept {size}", f"Holdfast accept, {size:,} stored").add(found)

    def flush() -> None:
        contest.of(f"flush {size}", f"Holdfast flush, {size:,} stored").add(flushed(relay, next(members), EACH))

    def replay() -> None:
        asked = (feed.address, feed.url, reader.secret, reader.key, size // 2 - REPLAYED // 2, REPLAYED)
        found = with_processor(feed.process.pid, lambda: _apart(_replay, *asked))
        contest.of(f"feed {size}", f"Holdfast replay, {size:,} stored").add(found)

    return {f"accept {size}": accept, f"flush {size}": flush, f"feed {size}": replay}


if __name__ == "__main__":
    main()
