"""Every decoder is given what nobody should send: a value or a typed no comes out, nothing else, and nothing is kept of it.

A few hundred inputs each every day, the same ones; `make fuzz` gives each 200,000 others, and says with which
seed: HOLDFAST_FUZZ_SEED repeats them.
"""

import gc
import os
import random
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.abuse.decoders import DECODERS, EVENTS
from tests.abuse.mutation import mutated
from tests.abuse.scene import Scene, answered
from tests.relay.running import ANSWER_S

EXECUTIONS = int(os.environ.get("HOLDFAST_FUZZ", "0"))
SEED = int(os.environ.get("HOLDFAST_FUZZ_SEED", "0")) or (random.SystemRandom().randrange(2**32) if EXECUTIONS else 1)
EVERY_DAY = 400
BLOCKS_KEPT_MAX = 0.2  # of memory, per input: caches fill up, and then no more
BLOCKS_FIRST_MAX = 8_000  # however few inputs there are
SHOWN_BYTES = 300


@pytest.mark.timeout(0 if EXECUTIONS else 300)
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_says_what_it_is_or_no(
    tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    decoder, luck = DECODERS[name], random.Random(f"{SEED} {name}")
    (tmp_path / "device.db").touch()
    executions = EXECUTIONS or max(int(EVERY_DAY * decoder.share), 2 * len(decoder.found))
    for seed in decoder.seeds:
        decoder.run(seed, tmp_path)  # good is good
    before = refused = 0
    for number in range(executions):
        if number == executions // 2:
            gc.collect()
            before = sys.getallocatedblocks()
        raw = decoder.found[number] if number < len(decoder.found) else mutated(luck, decoder.seeds)
        try:
            decoder.run(raw, tmp_path)
        except decoder.refusals:
            refused += 1
        except Exception as error:
            pytest.fail(f"seed {SEED}, number {number}: {raw[:SHOWN_BYTES]!r}: {type(error).__name__}: {error}")
    gc.collect()
    kept = sys.getallocatedblocks() - before
    assert kept < executions // 2 * BLOCKS_KEPT_MAX + BLOCKS_FIRST_MAX, f"seed {SEED}: {kept} blocks are kept"
    assert refused or not decoder.refusals, "what is given is not bad enough"
    record_property("inputs", executions)
    record_property("refused", refused)


REQUESTS = [
    b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s" % (len(EVENTS[0]), EVENTS[0]),
    b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n",
    (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n\x81\x85\x00\x00\x00\x00[1,2]\x88\x80\x00\x00\x00\x00"
    ),
    b"PUT /v1/consumers/x HTTP/1.0\r\nAuthorization: Bearer x\r\nContent-Length: 2\r\n\r\n{}",
]


@pytest.mark.timeout(0 if EXECUTIONS else 300)
def test_whatever_bytes_come_to_a_socket_the_program_answers_the_next(
    place: Scene, record_property: Callable[[str, object], None]
) -> None:
    luck = random.Random(f"{SEED} sockets")
    port = place.port.rpartition(":")[2]
    for number in range(EXECUTIONS // 20 or 150):
        raw = mutated(luck, REQUESTS)
        for address in (place.relay.address, ("127.0.0.1", int(port))):
            with socket.create_connection(address, timeout=ANSWER_S) as connection:
                _spoken(connection, raw, f"seed {SEED}, number {number}: {raw[:SHOWN_BYTES]!r}")
    assert place.relay.ask("GET", "/livez").status == 200
    assert place.relay.metric("holdfast_bugs_total") == 0
    told = answered(place.socket, "GET", "/v1/metrics").body
    assert b"holdfast_bugs_total 0.0" in told
    record_property("damaged requests", 2 * (EXECUTIONS // 20 or 150))


def _spoken(connection: socket.socket, raw: bytes, seen: str) -> None:
    """Say something and hang up; whatever is answered is no mistake of ours."""
    try:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65_536):
            assert b"internal_error" not in part, seen
    except ConnectionError:
        pass  # it did not even listen to the end
