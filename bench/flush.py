"""Flushing a queue: messages that waited are handed over and acknowledged, fifty at a time, beside Redis Streams.

    .venv/bin/python -m bench.flush

One connection each. An acknowledgement is answered when it is on disk; the next fifty are on their way meanwhile, here and there.
"""

import json
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.load import PATIENCE_S, Measured, _cpu_s
from bench.peers import Absent, Peer, redis, redis_command
from bench.processor import with_processor
from bench.rounds import ROUNDS, Contest, in_rounds
from bench.sockets import WebSocket, frame
from bench.syncs import syncs
from bench.world import GENEROUS
from holdfast.protocol.connection_auth import sign_connection_auth
from holdfast.protocol.event import encode
from tests.people import MESH
from tests.relay.crowd import gather, person
from tests.relay.running import RunningRelay, running

TOGETHER = 50
WAITING = 10_000  # messages in a queue that is flushed
SPARE = 2  # queues for the counting of syncs
QUICK = "[queue]\npause_ms = 0\nbatch_messages = 50\nwindow_messages = 200\n"  # a backlog without its polite pauses


def main() -> None:
    contest = Contest("flush", "waiting messages handed over and acknowledged a second, in fifties")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hfbench")))
        gather(folder / "relay", ROUNDS + SPARE, WAITING)
        relay = stack.enter_context(running(folder / "relay", GENEROUS + QUICK))
        members = iter(range(ROUNDS + SPARE))
        turns: dict[str, Callable[[], None]] = {"relay": lambda: _turn(contest, relay, next(members))}
        peer: Peer | None = None
        try:
            peer = stack.enter_context(redis())
            contest.of("redis", "Redis Streams, XREADGROUP and XACK").more["version"] = peer.version
            turns["redis"] = lambda: contest.those["redis"].add(flushed_redis(peer))  # type: ignore[arg-type]
        except Absent as absent:
            contest.without(absent)
        in_rounds(turns)
        one = contest.those["relay"]
        one.more["syncs_per_fifty"] = syncs(
            relay.process.pid, lambda: flushed(relay, next(members)).answered // TOGETHER
        )
        one.more["memory_mb"] = round(relay.memory_bytes() / 1e6)
        if peer is not None:
            contest.those["redis"].more["syncs_per_fifty"] = syncs(
                peer.pid, lambda: flushed_redis(peer).answered // TOGETHER
            )
    contest.goal("at least 20,000/s", contest.median("relay"), 20_000)
    contest.ratio("at least as fast as Redis", "relay", "redis", 1)
    contest.finish()


def _turn(contest: Contest, relay: RunningRelay, number: int) -> None:
    contest.of("relay", "Holdfast relay, queue over one WebSocket").add(flushed(relay, number))


def flushed(relay: RunningRelay, number: int, waiting: int = WAITING) -> Measured:
    """One member's whole queue, taken and acknowledged."""
    asked = (_flush, relay.address, relay.url, person(number).secret, waiting)
    return with_processor(relay.process.pid, lambda: _apart(*asked))


def flushed_redis(peer: Peer) -> Measured:
    return with_processor(peer.pid, lambda: _apart(_flush_redis, peer.address))  # with the filling of its queue


def _apart(work: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def _flush(address: tuple[str, int], url: str, secret: bytes, waiting: int) -> Measured:
    client = WebSocket(address)
    frames = client.frames()
    _, challenge = json.loads(next(frames))
    auth = sign_connection_auth(secret, url, challenge, int(time.time()), bytes(32))
    client.send(frame(b'["AUTH",' + encode(auth) + b"]"))
    assert json.loads(next(frames))[2] is True
    used, began = _cpu_s(), time.perf_counter()
    client.send(frame(json.dumps(["QUEUE", "q", {"mesh": MESH}]).encode()))
    seqs: list[bytes] = []
    acknowledged, sent_at, latencies, is_live = 0, list[float](), list[float](), False
    for text in frames:
        if text.startswith(b'["QUEUE","q","MSG",'):
            seqs.append(text[19 : text.index(b",", 19)])
        elif text.startswith(b'["QUEUE","q","ACKED"'):
            acknowledged += text.count(b",") - 2
            latencies.append((time.perf_counter() - sent_at[len(latencies)]) * 1000)
        elif text.startswith(b'["QUEUE","q","LIVE"'):
            is_live = True
        elif not text.startswith(b'["QUEUE","q","STATUS"'):
            raise RuntimeError(text[:200].decode())
        if len(seqs) == TOGETHER or (is_live and seqs):
            client.send(frame(b'["QUEUE","q","ACK",[' + b",".join(seqs) + b"]]"))
            sent_at.append(time.perf_counter())
            seqs = []
        if is_live and acknowledged >= waiting:
            break
    took = time.perf_counter() - began
    client.close()
    return Measured(acknowledged, took, latencies, (_cpu_s() - used) / took)


def _flush_redis(address: tuple[str, int]) -> Measured:
    connection = socket.create_connection(address, timeout=PATIENCE_S)
    reader = connection.makefile("rb")
    name = b"queue-%d" % time.time_ns()
    body = b"x" * 900
    for _ in range(WAITING // 100):
        connection.sendall(b"".join([redis_command(b"XADD", name, b"*", b"event", body)] * 100))
        for _ in range(100):
            _reply(reader)
    connection.sendall(redis_command(b"XGROUP", b"CREATE", name, b"all", b"0"))
    _reply(reader)
    read = redis_command(b"XREADGROUP", b"GROUP", b"all", b"me", b"COUNT", b"%d" % TOGETHER, b"STREAMS", name, b">")
    used, began = _cpu_s(), time.perf_counter()
    done, latencies = 0, list[float]()
    connection.sendall(read)
    found = _reply(reader)
    while found:
        ids = [entry[0] for entry in found[0][1]]
        asked = time.perf_counter()
        connection.sendall(redis_command(b"XACK", name, b"all", *ids) + read)
        done += int(_reply(reader))
        latencies.append((time.perf_counter() - asked) * 1000)
        found = _reply(reader)
    took = time.perf_counter() - began
    connection.close()
    return Measured(done, took, latencies, (_cpu_s() - used) / took)


def _reply(reader: Any) -> Any:
    line = reader.readline()
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise RuntimeError(rest.decode())
    if kind in (b"+", b":"):
        return rest
    if kind == b"$":
        return None if rest == b"-1" else reader.read(int(rest) + 2)[:-2]
    return None if rest == b"-1" else [_reply(reader) for _ in range(int(rest))]


if __name__ == "__main__":
    main()
