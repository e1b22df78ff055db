"""What devices keep of a relay that the lake has not read, and may never read: bounded, and checked once it comes."""

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline.tables import anchor_open as anchor_open_module
from holdfast.protocol import keys
from holdfast.protocol.anchor import sign_anchor
from holdfast.protocol.history import Draft, Kind
from tests.pipeline.tables.memory_lake import MemoryLake, Part
from tests.pipeline.twins.random_world import AUX, Log, secret_of

MOST = 3
SENDS = 8
DEVICE = "device:mesh/ann"

pytestmark = pytest.mark.timeout(600)  # a session of Spark on a busy machine takes its time


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchor_open_module, "ANCHORS_OPEN_MAX", MOST)


def relay_log() -> Log:
    log = Log(b"a relay's log id")
    for number in range(SENDS):
        log.say(Draft(kind=Kind.ADMIN, destination_ref=str(number)), 1)
    return log


def device_log(relay: Log, *, lying: bool = False) -> Log:
    """A device that the relay confirmed as many sends as it has entries."""
    log = Log(b"a device's log..")
    for sequence, entry in enumerate(relay.entries):
        chain = bytes(32) if lying and sequence == SENDS - 1 else entry.chain
        sig = sign_anchor(secret_of("relay"), relay.log_id, entry.seq, chain, AUX).sig
        detail = relay.log_id + entry.seq.to_bytes(8, "big") + chain + bytes.fromhex(sig)
        log.say(Draft(kind=Kind.RELAYED, mesh="mesh", epoch=b"e" * 16, sequence=sequence, detail=detail), 1)
    return log


def part(origin: str, log: Log, after: int, until: int) -> Part:
    chain = log.entries[after - 1].chain if after else None
    return Part(origin, log.log_id, after, until, log.entries[after:until], chain)


def test_what_waits_for_a_relay_that_never_comes_is_bounded_however_it_is_cut(spark: SparkSession) -> None:
    log = device_log(relay_log())
    one, many = MemoryLake(spark, ["anchor_open"]), MemoryLake(spark, ["anchor_open"])
    one.run([part(DEVICE, log, 0, SENDS)])
    for after in range(0, SENDS, 4):
        many.run([part(DEVICE, log, after, after + 4)])
        assert len(many.rows["anchor_open"]) == MOST
    assert one.rows["anchor_open"] == many.rows["anchor_open"]
    assert sorted(row["relay_seq"] for row in one.rows["anchor_open"]) == [SENDS - 2, SENDS - 1, SENDS]
    assert one.breaches == many.breaches == []


def test_the_latest_of_what_waited_still_holds_the_relay_to_its_word(spark: SparkSession) -> None:
    relay = relay_log()
    lake = MemoryLake(spark, ["anchor_open", "chain_break"])
    lake.run([part(DEVICE, device_log(relay, lying=True), 0, SENDS)])
    lake.run([part(f"relay:{keys.public_key(secret_of('relay'))}", relay, 0, SENDS)], full=True)
    assert lake.rows["anchor_open"] == []
    assert lake.violations() == [("anchor_mismatch", f"{relay.log_id.hex()}/{SENDS}")]
