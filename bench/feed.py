"""The changes feed: snapshots accepted over one socket, and replayed over one socket, beside a relay for Nostr in Python.

.venv/bin/python -m bench.feed
"""

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.load import Measured, _cpu_s
from bench.peers import Absent, Peer, nostr_relay
from bench.rounds import RATE_MAX, SECONDS, Contest, in_rounds
from bench.sockets import WebSocket, frame, published
from bench.world import GENEROUS
from holdfast.protocol.connection_auth import sign_connection_auth
from holdfast.protocol.event import encode
from tests.relay.feed_client import NOTE, Author
from tests.relay.library import fill
from tests.relay.running import running

STORED = 20_000  # snapshots that are replayed from ours
STORED_THERE = 2_000  # and from the other, which takes its time
READ_TIMES = 2


def main() -> None:
    contest = Contest("feed", "snapshots accepted and replayed a second")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hfbench")))
        reader = Author("reader")
        fill(folder / "relay", reader, STORED)
        relay = stack.enter_context(running(folder / "relay", GENEROUS, options=["--open-feed"]))
        writer = Author("writer")
        turns: dict[str, Callable[[], None]] = {
            "replay": lambda: contest.of("replay", "Holdfast relay, replay of the feed").add(
                _apart(_replay, relay.address, relay.url, reader.secret, reader.key)
            ),
            "accept": lambda: contest.of("accept", "Holdfast relay, snapshots accepted").add(
                published(relay.address, _signed(writer, int(RATE_MAX * SECONDS)), SECONDS)
            ),
        }
        try:
            peer = stack.enter_context(nostr_relay())
            contest.of("nostr_accept", "nostr-relay, events accepted").more["version"] = peer.version
            _stock(peer)
            other = Author("other")
            turns["nostr_accept"] = lambda: contest.those["nostr_accept"].add(
                published(peer.address, _signed(other, 4_000), SECONDS, is_greeted=False)  # type: ignore[arg-type]
            )
            turns["nostr_replay"] = lambda: contest.of("nostr_replay", "nostr-relay, REQ").add(
                _apart(_request, peer.address, Author("stock").key)
            )
        except Absent as absent:
            contest.without(absent)
        in_rounds(turns)
    contest.goal("replay: at least 50,000/s", contest.median("replay"), 50_000)
    contest.ratio("replay: at least 20 times nostr-relay", "replay", "nostr_replay", 20)
    contest.ratio("accept: at least 20 times nostr-relay", "accept", "nostr_accept", 20)
    contest.finish()


def _signed(author: Author, count: int) -> list[bytes]:
    """New snapshots, each of a document of its own, signed by as many processes as there are cores."""
    cores = os.cpu_count() or 1
    shares = [(author.name, f"{os.urandom(4).hex()}-{core}", count // cores) for core in range(cores)]
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        return [raw for share in pool.starmap(_sign, shares) for raw in share]


def _sign(name: str, prefix: str, count: int) -> list[bytes]:
    author = Author(name)
    return [encode(author.snapshot(f"{prefix}-{number}", content="x" * 200)) for number in range(count)]


def _stock(peer: Peer) -> None:
    """Fill the other relay with what it is then asked for."""
    published(peer.address, _signed(Author("stock"), STORED_THERE), 600, is_greeted=False)  # type: ignore[arg-type]


def _apart(work: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def _replay(
    address: tuple[str, int], url: str, secret: bytes, key: str, since: int = 0, limit: int | None = None
) -> Measured:
    client = WebSocket(address)
    frames = client.frames()
    _, challenge = json.loads(next(frames))
    auth = sign_connection_auth(secret, url, challenge, int(time.time()), bytes(32))
    client.send(frame(b'["AUTH",' + encode(auth) + b"]"))
    assert json.loads(next(frames))[2] is True
    asked = {"mode": "tail", "kinds": [NOTE], "authors": [key], "since": since} | (
        {} if limit is None else {"limit": limit}
    )
    return _until_eose(client, lambda number: json.dumps(["CHANGES", f"s{number}", asked]).encode())


def _request(address: tuple[str, int], key: str) -> Measured:
    client = WebSocket(address)
    asked = {"authors": [key], "kinds": [NOTE], "limit": 1_000_000}
    return _until_eose(client, lambda number: json.dumps(["REQ", f"s{number}", asked]).encode())


def _until_eose(client: WebSocket, ask: Callable[[int], bytes]) -> Measured:
    frames, events, latencies = client.frames(), 0, []
    used, began = _cpu_s(), time.perf_counter()
    for number in range(READ_TIMES):
        asked = time.perf_counter()
        client.send(frame(ask(number)))
        for text in frames:
            start = text[:40]
            if b'"EOSE"' in start:
                break
            if b'"ERR"' in start or b'"NOTICE"' in start or b'"CLOSED"' in start:
                raise RuntimeError(text[:200].decode())
            events += b'"EVENT"' in start
        latencies.append((time.perf_counter() - asked) * 1000)
    took = time.perf_counter() - began
    client.close()
    assert events
    return Measured(events, took, latencies, (_cpu_s() - used) / took)


if __name__ == "__main__":
    main()
