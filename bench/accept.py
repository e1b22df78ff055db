"""Accept: how many messages does a relay take, verified and durable, beside servers that only store what they are given?

    .venv/bin/python -m bench.accept

The same signed messages go to all: 64 clients with one request under way each. Ours also in batches of a hundred and through
one socket without waiting between messages. Needs the peers: make bench-accept brings them.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from bench.load import http_post, measure
from bench.peers import PEERS, Absent, Peer, nats_publish, postgres_query, redis_command
from bench.processor import with_processor
from bench.rounds import RATE_MAX, SECONDS, Contest, in_rounds
from bench.syncs import syncs
from bench.world import Mesh, generous_relay
from holdfast.protocol import event as events
from tests.relay.running import RunningRelay

CLIENTS = 64
TOGETHER = 100
BATCH_CLIENTS = 4
ALONE = 100  # requests of the one client whose syncs are counted
NAMES = {
    "jetstream": "NATS JetStream, sync always",
    "redis": "Redis Streams, bare append",
    "postgres": "PostgreSQL, the same transaction",
}

Pages = list[list[bytes]]  # of each client its messages, in order


class Store:
    """Messages, signed once, given out in pieces so that nobody gets one twice."""

    def __init__(self, relay: RunningRelay) -> None:
        self.mesh = Mesh(relay, CLIENTS)

    def take(self, each: int) -> Pages:
        return self.mesh.signed(each)


def main() -> None:
    contest = Contest("accept", "messages accepted a second")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hfbench")))
        relay = stack.enter_context(generous_relay(folder))
        peers = dict(_started(contest, stack))
        store = Store(relay)
        each = int(RATE_MAX * SECONDS / CLIENTS)
        turns: dict[str, Callable[[], None]] = {
            "relay": lambda: _one_each(contest, relay, store, each),
            "batches": lambda: _batches(contest, relay, store),
            "socket": lambda: _one_socket(contest, relay, store),
            "core": lambda: _one_core(contest, store),
        }
        sample = store.take(min(each, 800))  # what the others store needs no new signature every round
        for key, peer in peers.items():
            turns[key] = lambda key=key, peer=peer: _other(contest, key, peer, sample)  # type: ignore[misc]
        in_rounds(turns)
        _count_syncs(contest, relay, peers, store, sample)
        contest.those["one"].more["memory_mb"] = round(relay.memory_bytes() / 1e6)
    contest.goal("at least 10,000/s", contest.median("one"), 10_000)
    contest.ratio("at least 3 times JetStream", "one", "jetstream", 3)
    contest.ratio("at least 2 times the same transaction in PostgreSQL", "one", "postgres", 2)
    contest.ratio("at least 0.4 of Redis's bare append", "one", "redis", 0.4)
    contest.ratio("batches: at least 0.9 of what one core verifies", "batches", "core", 0.9)
    contest.ratio("one socket: at least 0.9 of what one core verifies", "socket", "core", 0.9)
    contest.finish()


def _started(contest: Contest, stack: ExitStack) -> Iterator[tuple[str, Peer]]:
    for key, start in PEERS.items():
        try:
            peer = stack.enter_context(start())
        except Absent as absent:
            contest.without(absent)
            continue
        contest.of(key, NAMES[key]).more["version"] = peer.version
        yield key, peer


def _one_each(contest: Contest, relay: RunningRelay, store: Store, each: int) -> None:
    pages = [[http_post("/v1/messages", raw) for raw in page] for page in store.take(each)]
    found = with_processor(relay.process.pid, lambda: measure("http", relay.address, pages, SECONDS))
    contest.of("one", "Holdfast relay, one message a request").add(found)


def _batches(contest: Contest, relay: RunningRelay, store: Store) -> None:
    messages = [raw for page in store.take(int(RATE_MAX * SECONDS / CLIENTS)) for raw in page]
    bodies = [b"[" + b",".join(messages[at : at + TOGETHER]) + b"]" for at in range(0, len(messages), TOGETHER)]
    pages = [
        [http_post("/v1/messages", body) for body in bodies[number::BATCH_CLIENTS]] for number in range(BATCH_CLIENTS)
    ]
    found = with_processor(relay.process.pid, lambda: measure("http", relay.address, pages, SECONDS))
    contest.of("batches", "Holdfast relay, a hundred a request").add(found, TOGETHER)


def _one_socket(contest: Contest, relay: RunningRelay, store: Store) -> None:
    from bench.sockets import published  # the client's own library, and only here

    messages = [raw for page in store.take(int(RATE_MAX * SECONDS / CLIENTS)) for raw in page]
    found = with_processor(relay.process.pid, lambda: published(relay.address, messages, SECONDS))
    contest.of("socket", "Holdfast relay, one WebSocket, not waiting").add(found)


def _one_core(contest: Contest, store: Store) -> None:
    """What one core verifies when it does nothing else."""
    from bench.load import Measured

    found = [events.decode(raw) for raw in store.take(40)[0]]
    began, checked = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS / 2:
        for event in found:
            events.check_signature(event)
        checked += len(found)
    seconds = time.perf_counter() - began
    contest.of("core", "signatures that one core verifies").add(Measured(checked, seconds, [0.0], 1.0))


_unique = count()


def _other(contest: Contest, key: str, peer: Peer, sample: Pages) -> None:
    pages = [_asked(key, number, page) for number, page in enumerate(sample)]
    found = with_processor(peer.pid, lambda: measure(peer.wire, peer.address, pages, SECONDS))
    contest.of(key, NAMES[key]).add(found)


def _asked(key: str, number: int, page: list[bytes]) -> list[bytes]:
    """The same messages in another server's words, with ids that it has not seen."""
    if key == "jetstream":
        return [nats_publish(f"bench.{number}", number, raw) for raw in page]
    if key == "redis":
        return [redis_command(b"XADD", b"queue-%d" % number, b"*", b"event", raw) for raw in page]
    return [_accept_in_postgres(number, raw) for raw in page]


def _accept_in_postgres(number: int, raw: bytes) -> bytes:
    event = json.loads(raw)
    epoch = next(tag[1] for tag in event["tags"] if tag[0] == "epoch")
    text = raw.decode().replace("'", "''")
    return postgres_query(
        f"SELECT accept('mesh-of-the-bench', 'member-{number}', 'member-{(number + 1) % CLIENTS}', '{next(_unique):026}', "
        f"'\\x{event['id']}', '\\x{epoch}', {next(_unique)}, '{text}')"
    )


def _count_syncs(contest: Contest, relay: RunningRelay, peers: dict[str, Peer], store: Store, sample: Pages) -> None:
    """What each synced for one client that waits for every answer."""
    alone = [[http_post("/v1/messages", raw) for raw in store.take(ALONE)[0]]]
    found = {"one": syncs(relay.process.pid, lambda: measure("http", relay.address, alone, 60).answered)}
    for key, peer in peers.items():
        asked = [_asked(key, 0, sample[0][:ALONE])]
        found[key] = syncs(
            peer.pid, lambda peer=peer, asked=asked: measure(peer.wire, peer.address, asked, 60).answered
        )  # type: ignore[misc]
    for key, per_answer in found.items():
        contest.those[key].more["syncs_per_answer"] = per_answer


if __name__ == "__main__":
    main()
