"""Sending: how many messages a daemon takes over its Unix socket, durable when it says so; and how soon the receipt is back.

    .venv/bin/python -m bench.send

64 callers with one request under way each, the relay away: the same work as of those who only put a task into a queue. What
they call is in their own process, ours is behind a socket. Then relay and both daemons run, a message now and then, and the
sender's own history tells how long each took from the send to the recipient's signed receipt.
"""

import asyncio
import importlib.metadata
import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.homes import ROOMY, RunningDaemon, daemon, make, until
from bench.load import Measured, _cpu_s, http_post, measure
from bench.peers import Absent, postgres
from bench.rounds import SECONDS, Contest, in_rounds, say
from bench.syncs import syncs
from bench.world import generous_relay
from holdfast.device.database import open_to_read
from tests.relay.running import RunningRelay

CALLERS = 64
BODY = "x" * 200
ALONE = 100
LIGHT_SENDS = 200
LIGHT_PAUSE_S = 0.05


def main() -> None:
    contest = Contest("send", "sends taken a second from 64 callers")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hfbench")))
        _light(contest, folder)
        alice = stack.enter_context(_offline(folder))
        turns: dict[str, Callable[[], None]] = {"daemon": lambda: _daemon(contest, alice)}
        if (version := _version(contest, "huey")) is not None:
            contest.of("huey", "huey on SQLite, fsync").more["version"] = version
            turns["huey"] = lambda: contest.those["huey"].add(_apart(_huey))
        if (version := _version(contest, "pgqueuer")) is not None:
            peer = stack.enter_context(postgres())
            contest.of("pgqueuer", "pgqueuer on PostgreSQL").more["version"] = f"{version}, {peer.version}"
            _apart(_pgqueuer_install, peer.url)
            turns["pgqueuer"] = lambda: contest.those["pgqueuer"].add(_apart(_pgqueuer, peer.url))
        in_rounds(turns)
        alone = [_requests(ALONE)]
        contest.those["daemon"].more["syncs_per_answer"] = syncs(
            alice.pid, lambda: measure("http", alice.socket, alone, 60).answered
        )
    contest.goal("at least 8,000/s", contest.median("daemon"), 8_000)
    contest.goal("p99 under 20 ms", statistics.median(contest.those["daemon"].p99s), 20, at_most=True)
    contest.ratio("at least 2.5 times huey", "daemon", "huey", 2.5)
    light = contest.those["receipt"].more
    contest.goal("send to receipt, light load: p50 under 15 ms", light["p50_ms"], 15, at_most=True)
    contest.goal("send to receipt, light load: p99 under 60 ms", light["p99_ms"], 60, at_most=True)
    contest.finish()


def _version(contest: Contest, package: str) -> str | None:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        contest.without(Absent(package))
        return None


def _offline(folder: Path) -> Any:
    """A daemon that knows whom it writes to, and whose relay is away."""
    place = folder / "offline"
    place.mkdir()
    with generous_relay(place) as relay:
        alice, _ = make(relay, place, "alice", "bob")
    (alice.path / "daemon.toml").write_text(ROOMY)
    return daemon(alice)


def _requests(count: int) -> list[bytes]:
    body = json.dumps({"to": "bob", "message": BODY}).encode()
    return [http_post("/v1/send", body, "localhost")] * count


def _daemon(contest: Contest, alice: RunningDaemon) -> None:
    found = measure("http", alice.socket, [_requests(100_000)] * CALLERS, SECONDS)
    contest.of("daemon", "Holdfast daemon, POST /v1/send").add(found)


def _light(contest: Contest, folder: Path) -> None:
    """Messages now and then, from one home to another and back as a receipt."""
    place = folder / "light"
    place.mkdir()
    with generous_relay(place) as relay:
        alice, bob = make(relay, place, "alice", "bob")
        with daemon(bob), daemon(alice) as sender:
            _paced(sender, relay, 20)  # warm
            _paced(sender, relay, LIGHT_SENDS)
            until(lambda: len(_times(sender)) >= LIGHT_SENDS + 20)
            times = sorted(_times(sender)[20:])
    one = contest.of("receipt", "send to signed receipt, 20 a second", "ms")
    one.more |= {"p50_ms": _share(times, 0.5), "p99_ms": _share(times, 0.99), "samples": len(times)}
    say(f"  send to receipt: p50 {one.more['p50_ms']} ms, p99 {one.more['p99_ms']} ms")


def _paced(sender: RunningDaemon, relay: RunningRelay, count: int) -> None:
    for _ in range(count):
        measure_one(sender)
        time.sleep(LIGHT_PAUSE_S)


def measure_one(sender: RunningDaemon) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(sender.socket)
        connection.sendall(_requests(1)[0])
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 20"), answer


def _times(sender: RunningDaemon) -> list[float]:
    """Milliseconds from the send to the receipt, of every message, by the sender's history."""
    engine = open_to_read(sender.home.database)
    try:
        with engine.read() as transaction:
            return [
                (receipt - sent) / 1000
                for sent, receipt in transaction.rows(
                    "SELECT sent.at, receipt.at FROM history AS sent JOIN history AS receipt "
                    "ON receipt.client_message_id = sent.client_message_id AND receipt.kind = 'receipt' "
                    "WHERE sent.kind = 'enqueued' ORDER BY sent.seq"
                )
            ]
    finally:
        engine.close()


def _share(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


def _apart(work: Callable[..., Any], *arguments: Any) -> Any:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(work, arguments)


def _huey() -> Measured:
    from huey import SqliteHuey

    with tempfile.TemporaryDirectory(prefix="hfbench") as folder:
        queue = SqliteHuey("bench", filename=f"{folder}/huey.db", fsync=True, timeout=60)

        @queue.task()
        def deliver(to: str, message: str) -> None:
            pass

        return _by_threads(lambda: deliver("bob", BODY))


def _by_threads(put: Callable[[], object]) -> Measured:
    found: list[list[float]] = [[] for _ in range(CALLERS)]
    began, used = time.perf_counter(), _cpu_s()
    ends = began + SECONDS

    def one(latencies: list[float]) -> None:
        while (now := time.perf_counter()) < ends:
            put()
            latencies.append((time.perf_counter() - now) * 1000)

    threads = [threading.Thread(target=one, args=(latencies,)) for latencies in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    every = [latency for latencies in found for latency in latencies]
    return Measured(len(every), took, every, (_cpu_s() - used) / took)


def _pgqueuer_install(url: str) -> None:
    import psycopg
    from pgqueuer.db import PsycopgDriver
    from pgqueuer.queries import Queries

    async def install() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await Queries(PsycopgDriver(connection)).install()

    asyncio.run(install())


def _pgqueuer(url: str) -> Measured:
    import psycopg
    from pgqueuer.db import PsycopgDriver
    from pgqueuer.queries import Queries

    async def load() -> Measured:
        connections = [await psycopg.AsyncConnection.connect(url, autocommit=True) for _ in range(CALLERS)]
        found: list[float] = []
        began, used = time.perf_counter(), _cpu_s()
        ends = began + SECONDS
        body = BODY.encode()

        async def one(queries: Queries) -> None:
            while (now := time.perf_counter()) < ends:
                await queries.enqueue("deliver", body)
                found.append((time.perf_counter() - now) * 1000)

        await asyncio.gather(*(one(Queries(PsycopgDriver(connection))) for connection in connections))
        took = time.perf_counter() - began
        busy = (_cpu_s() - used) / took
        for connection in connections:
            await connection.close()
        return Measured(len(found), took, found, busy)

    return asyncio.run(load())


if __name__ == "__main__":
    main()
