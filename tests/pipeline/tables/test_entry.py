"""The bytes that a chain covers, made of many entries at once: the same as of one, for whatever an entry may hold."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from holdfast.pipeline.tables._links import entry_bytes
from holdfast.protocol.event import EVENT_BYTES_MAX
from holdfast.protocol.history import Draft, Entry, Kind, encode, link
from holdfast.protocol.tags import INTEGER_MAX
from tests.pipeline.tables.memory_lake import MemoryLake, Part, entry_frame
from tests.pipeline.twins.random_world import Log

TEXT = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
BYTES = st.none() | st.binary(max_size=40)
NUMBER = st.none() | st.integers(-(2**63), 2**63 - 1)
NAME = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=5)

pytestmark = pytest.mark.timeout(600)  # a session of Spark on a busy machine takes its time

DRAFT = st.builds(
    Draft,
    kind=st.sampled_from(Kind),
    mesh=TEXT,
    message_id=TEXT,
    client_message_id=TEXT,
    sender=TEXT,
    epoch=BYTES,
    sequence=NUMBER,
    recipient=TEXT,
    recipients=st.lists(st.tuples(NAME, NAME), max_size=3).map(tuple),
    mentions=st.lists(NAME, max_size=3).map(tuple),
    destination_kind=TEXT,
    destination_ref=TEXT,
    event_id=BYTES,
    size=NUMBER,
    was_stored=st.none() | st.booleans(),
    reason=TEXT,
    detail=st.binary(max_size=40),
)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(drafts=st.lists(DRAFT, min_size=40, max_size=40))
def test_all_at_once_are_the_same_bytes_as_one_by_one(spark: SparkSession, drafts: list[Draft]) -> None:
    entries: list[Entry] = []
    for number, draft in enumerate(drafts, 1):
        entries.append(link(bytes(32), number, 1_780_000_000_000_000 + number, draft))
    frame = entry_frame(spark, [Part("relay:x", b"A" * 16, 0, len(entries), entries)])
    (batch,) = frame.orderBy("seq").toArrow().combine_chunks().to_batches()
    assert entry_bytes(batch).to_pylist() == [encode(entry.seq, entry.at, entry) for entry in entries]


DETAILS = {
    "none": b"",
    "no text": b"\xff" * 9,
    "cut": b"\xf0\x9f" * 60,
    "no json": b"{" * 72,
    "no length": b"\x7f\xff\xff\xff",
    "no counter": b'{"author":"ann","d":"a","vc":[["x"]]}',
    "no end of counters": b'{"author":"ann","d":"a","vc":[["x","9223372036854775807"],["y","9223372036854775807"]]}',
}
NUMBERS = (2**63 - 1, 2**63 - 1, -(2**63), 0)


def test_a_detail_that_says_nothing_ends_no_run(spark: SparkSession) -> None:
    """Somebody may have changed it, and the run is there to find that."""
    lake = MemoryLake(spark)
    parts = []
    for name, detail in DETAILS.items():
        for origin in (f"relay:{name}", f"device:mesh-1/{name}"):
            log = Log(origin.encode()[-16:].rjust(16))
            for number, kind in enumerate(Kind):
                draft = Draft(kind=kind, mesh="mesh-1", sender="ann", epoch=bytes(16), sequence=number, detail=detail)
                log.say(draft, 1)
            parts.append(Part(origin, log.log_id, 0, len(log.entries), log.entries))
    lake.run(parts, full=True, state={})
    assert len(lake.rows["history"]) == len(parts) * len(Kind)


def test_numbers_without_end_end_no_run(spark: SparkSession) -> None:
    lake = MemoryLake(spark, ("usage", "retry_profile", "sequence_gap"))
    for after in range(2):
        parts = []
        for origin in ("relay:a", "device:mesh-1/ann"):
            log = Log(origin.encode()[-16:].rjust(16), at=1_780_000_000_000_000 + after)
            for kind, number in itertools.product(Kind, NUMBERS):
                draft = Draft(kind=kind, mesh="mesh-1", sender="ann", epoch=bytes(16), sequence=number, size=number)
                log.say(draft)
            for number in (*NUMBERS, 3, INTEGER_MAX, INTEGER_MAX + 1):
                kind = Kind.ACCEPTED if origin == "relay:a" else Kind.RELAYED
                epoch = bytes(16) if origin == "relay:a" else b"\x01" * 16
                detail = b"relay:a".rjust(16) + (1).to_bytes(8, "big") + bytes(96)
                log.say(Draft(kind=kind, mesh="mesh-1", sender="ann", epoch=epoch, sequence=number, detail=detail))
            parts.append(Part(origin, log.log_id, 0, len(log.entries), log.entries))
        lake.run(parts)
    assert len(lake.rows["history"]) == 2 * len(parts) * (len(Kind) * len(NUMBERS) + len(NUMBERS) + 3)
    assert lake.breaches == []
    told = [(row["key"].rpartition("/")[2], row["detail"].partition(";")[0]) for row in lake.rows["sequence_gap"]]
    never = "the device was told that 1 sends were accepted, and the relay's history lacks them"
    assert sorted(told) == [
        ("0-0", never),
        ("00" * 16, f"{INTEGER_MAX - 2} sequences between 1 and {INTEGER_MAX - 1} never came"),
        ("3-3", never),
        (f"{INTEGER_MAX}-{INTEGER_MAX}", never),
    ]
    assert [row["sent_bytes"] for row in lake.rows["usage"]] == [0]


def test_a_size_that_no_message_has_is_not_added_to_those_of_others(spark: SparkSession) -> None:
    lake = MemoryLake(spark, ["usage"])
    log = Log(b"A" * 16)
    for size in (100, *NUMBERS, EVENT_BYTES_MAX, EVENT_BYTES_MAX + 1, None):
        log.say(Draft(kind=Kind.ACCEPTED, mesh="mesh-1", sender="ann", size=size), 1)
    lake.run([Part("relay:a", log.log_id, 0, len(log.entries), log.entries)])
    assert [row["sent_bytes"] for row in lake.rows["usage"]] == [100 + EVENT_BYTES_MAX]
