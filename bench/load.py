"""The load: many connections, each with one request under way, bytes made beforehand, from a process of its own.

The same loop serves every server that is compared, whatever it speaks: a wire says how a connection is opened and when an
answer is whole. So what a request costs on this side of the socket is the same for all, and as little as Python can do with it.
"""

import json
import multiprocessing
import resource
import select
import socket
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Address = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""

PATIENCE_S = 60.0  # for an answer


@dataclass
class Measured:
    """What one run of the load saw."""

    answered: int
    seconds: float
    latencies_ms: list[float] = field(repr=False)
    busy: float  # share of one core that the load itself took
    server_s: float | None = None  # of processor time that the server took, where that was looked at

    @property
    def per_s(self) -> float:
        return self.answered / self.seconds

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Refused(Exception):
    """A server did not say yes."""


def http_opening(connection: socket.socket, number: int) -> None:
    """Nothing is said before the first request."""


def http_whole(answer: bytes) -> bool:
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    if not answer.startswith(b"HTTP/1.1 20"):
        raise Refused(answer[:500].decode())
    at = answer.find(b"ontent-length: ", 0, end)
    length = int(answer[at + 15 : answer.find(b"\r", at)])
    return len(answer) >= end + 4 + length


def nats_opening(connection: socket.socket, number: int) -> None:
    connection.recv(65_536)  # INFO
    greeting = json.dumps({"verbose": False, "pedantic": False, "headers": True, "no_responders": True})
    connection.sendall(f"CONNECT {greeting}\r\nSUB answers.{number} 1\r\nPING\r\n".encode())
    while not connection.recv(65_536).endswith(b"PONG\r\n"):
        pass


def nats_whole(answer: bytes) -> bool:
    answer = answer.removeprefix(b"PING\r\n")  # once, soon after the beginning; it waits for minutes to be answered
    end = answer.find(b"\r\n")
    if end < 0:
        return False
    if b'"error"' in answer or not answer.startswith(b"MSG"):
        raise Refused(answer[:500].decode())
    length = int(answer[answer.rfind(b" ", 0, end) + 1 : end])
    return len(answer) >= end + 4 + length


def redis_opening(connection: socket.socket, number: int) -> None:
    """Nothing is said before the first request."""


def redis_whole(answer: bytes) -> bool:
    """The answers to our requests are one text or one number, or an array of arrays that ends in a line of its own."""
    if answer.startswith(b"-"):
        raise Refused(answer[:500].decode())
    return answer.endswith(b"\r\n") and (not answer.startswith(b"$") or answer.count(b"\r\n") == 2)


def postgres_opening(connection: socket.socket, number: int) -> None:
    wanted = b"user\0holdfast\0database\0" + _database.encode() + b"\0\0"
    connection.sendall(struct.pack("!II", 8 + len(wanted), 196_608) + wanted)
    answer = b""
    while not postgres_whole(answer):
        answer += connection.recv(65_536)


def postgres_whole(answer: bytes) -> bool:
    if answer.startswith(b"E"):
        raise Refused(answer[:500].decode(errors="replace"))
    return len(answer) >= 6 and answer[-6:-1] == b"Z\x00\x00\x00\x05"


_database = "bench"

WIRES: dict[str, tuple[Callable[[socket.socket, int], None], Callable[[bytes], bool]]] = {
    "http": (http_opening, http_whole),
    "nats": (nats_opening, nats_whole),
    "redis": (redis_opening, redis_whole),
    "postgres": (postgres_opening, postgres_whole),
}


def http_post(path: str, body: bytes, host: str = "127.0.0.1") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def measure(wire: str, address: Address, requests: Sequence[Sequence[bytes]], seconds: float) -> Measured:
    """Send for so long, or until there is no more: one connection for each of `requests`, one request of each at a time."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, wire, address, requests, seconds))
    process.start()
    theirs.close()
    try:
        found = mine.recv()
    except EOFError:
        raise RuntimeError(f"the load on {wire} ended before it had finished") from None
    finally:
        process.join()
    return found  # type: ignore[no-any-return]


def _serve(pipe: Any, wire: str, address: Address, requests: Sequence[Sequence[bytes]], seconds: float) -> None:
    pipe.send(_run(wire, address, requests, seconds))


def _run(wire: str, address: Address, requests: Sequence[Sequence[bytes]], seconds: float) -> Measured:
    opening, whole = WIRES[wire]
    connections = [_connected(address, opening, number) for number in range(len(requests))]
    waiting = {
        connection.fileno(): (connection, iter(of_one))
        for connection, of_one in zip(connections, requests, strict=True)
    }
    poll = select.epoll()
    for number in waiting:
        poll.register(number, select.EPOLLIN)
    heard = dict.fromkeys(waiting, b"")
    asked_at = dict.fromkeys(waiting, 0.0)
    latencies: list[float] = []
    clock = time.perf_counter
    used = _cpu_s()
    began = now = clock()
    ends = began + seconds
    open_ = 0
    for number, (connection, left) in waiting.items():
        asked_at[number] = clock()
        connection.sendall(next(left))
        open_ += 1
    while open_:
        ready = poll.poll(PATIENCE_S)
        if not ready:
            raise RuntimeError(f"{wire}: no answer within {PATIENCE_S:g} s")
        for number, _ in ready:
            connection, left = waiting[number]
            got = connection.recv(262_144)
            if not got:
                raise RuntimeError(f"{wire}: the server closed a connection")
            answer = heard[number] + got if heard[number] else got
            if not whole(answer):
                heard[number] = answer
                continue
            heard[number] = b""
            now = clock()
            latencies.append((now - asked_at[number]) * 1000)
            request = next(left, None) if now < ends else None
            if request is None:
                open_ -= 1
                continue
            asked_at[number] = now
            connection.sendall(request)
    for connection in connections:
        connection.close()
    return Measured(len(latencies), now - began, latencies, (_cpu_s() - used) / (now - began))


def _connected(address: Address, opening: Callable[[socket.socket, int], None], number: int) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_S)
    connection.connect(address)
    if family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opening(connection, number)
    return connection


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def median(figures: Sequence[float]) -> float:
    return statistics.median(figures)
