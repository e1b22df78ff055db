"""A queue costs what is in it, not what is in all the others: neither time nor memory grows with the crowd.

`make scale` measures it: a million messages for ten thousand members beside ten thousand for a hundred. Otherwise a small crowd
shows that the measurement measures what it says, and the plans of the statements that nothing is read through.
"""

import os
import re
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.cli.check import inspect
from holdfast.relay import queue
from holdfast.relay.closing import acknowledge
from holdfast.relay.database import open_relay, open_to_read
from holdfast.store.statements import Statements
from holdfast.store.world import wall_clock
from tests.people import MESH
from tests.relay.crowd import gather, person
from tests.relay.queue_client import connected, following
from tests.relay.running import RunningRelay, running

MEASURED = os.environ.get("HOLDFAST_SCALE") == "1"
EACH = 100  # messages that wait for one member
FEW, MANY = (100, 10_000) if MEASURED else (5, 20)  # members
CONNECTS = 60  # to each relay, by turns
RATIO_MAX = 1.3

# What a connection, the poll and the metrics ask while a relay runs; `depths` and `named` are an operator's own.
RUNNING = (
    "reader",
    "status",
    "pending",
    "highest_sequence",
    "forks",
    "waiting",
    "delivered_before",
    "waiting_since",
    "changed_since",
)
ASKED = ("oldest", "message", "fates", "send")
PAGE_BYTES = 4096  # of SQLite
# A page, or as many rows as there were restorations.
SMALL = ("SCAN next", "SCAN sized", "SCAN (subquery", "SCAN history USING INDEX history_restored", "SCAN restoration")


def _to_first_message(relay: RunningRelay, number: int) -> float:
    """Seconds from nothing to the first message of a queue."""
    member = person(number)
    started = time.perf_counter()
    with following(relay, member) as client:
        client.message()
        took = time.perf_counter() - started
        assert client.status["pending_count"] == EACH
        client.messages(EACH - 1)
        client.live()
    return took


def test_the_way_to_the_first_message_and_the_memory_do_not_grow_with_the_crowd(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    for name, members in (("few", FEW), ("many", MANY)):
        gather(tmp_path / name, members, EACH)
    with running(tmp_path / "few") as few, running(tmp_path / "many") as many:
        took: dict[str, list[float]] = {"few": [], "many": []}
        for turn in range(CONNECTS if MEASURED else 5):
            took["few"].append(_to_first_message(few, turn % FEW))
            took["many"].append(_to_first_message(many, turn * (MANY // CONNECTS or 1) % MANY))
        first_ms = {name: statistics.median(times[len(times) // 10 :]) * 1000 for name, times in took.items()}
        memory = {"few": few.memory_bytes() / 2**20, "many": many.memory_bytes() / 2**20}
    if not MEASURED:
        return  # nothing here asserts how long a thing takes
    told = f"first message after {first_ms} ms, memory {memory} MiB"
    print(told)
    record_property("measured", told)
    assert first_ms["many"] <= RATIO_MAX * first_ms["few"], told
    assert memory["many"] <= RATIO_MAX * memory["few"], told


@pytest.mark.skipif(MEASURED, reason="a small crowd will do")
def test_the_crowd_is_what_a_relay_would_have_written(tmp_path: Path) -> None:
    gather(tmp_path / "relay", 3, 7)
    assert inspect(tmp_path / "relay" / "relay.db") == ("relay", [])
    with running(tmp_path / "relay") as relay, connected(relay, person(2)) as client:
        assert client.open()["pending_count"] == 7
        got = client.until_live()
        assert [message.seq for message in got] == list(range(got[0].seq, got[0].seq + 21, 3))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Path:
    data = tmp_path_factory.mktemp("plans") / "relay"
    gather(data, 2, 1)
    return data / "relay.db"


@pytest.mark.skipif(MEASURED, reason="plans are the same")
@pytest.mark.parametrize("name", [*RUNNING, *ASKED])
def test_no_statement_of_a_queue_reads_a_table_through(database: Path, name: str) -> None:
    statement = Statements("holdfast.relay", "queue.sql")[name]
    parameters = dict.fromkeys(re.findall(r":(\w+)", statement), None)
    with closing(open_to_read(database)) as engine, engine.read() as transaction:
        steps = [str(row[3]) for row in transaction.rows(f"EXPLAIN QUERY PLAN {statement}", parameters)]
    assert steps
    assert [step for step in steps if step.startswith("SCAN") and not step.startswith(SMALL)] == []


@pytest.mark.skipif(MEASURED, reason="a small crowd will do")
def test_an_acknowledgement_writes_a_few_pages_though_its_messages_lie_among_everybodys(tmp_path: Path) -> None:
    gather(tmp_path / "relay", 40, 50)
    log = tmp_path / "relay" / "relay.db-wal"
    with closing(open_relay(tmp_path / "relay" / "relay.db")) as engine:
        with engine.read() as transaction:
            page = queue.waiting(transaction, wall_clock(), MESH, person(7).member, 0, 50)
        before = log.stat().st_size
        with engine.write() as transaction:
            done = acknowledge(
                transaction, wall_clock(), MESH, person(7).member, {one.seq: True for one in page.messages}
            )
        assert len(done.closed) == 50
        assert (log.stat().st_size - before) / PAGE_BYTES < 50 / 2  # of all tables, with the entries of the history


@pytest.mark.skipif(MEASURED, reason="plans are the same")
def test_a_receipt_finds_its_delivery_by_the_message_not_by_all_that_its_signer_ever_got(tmp_path: Path) -> None:
    gather(tmp_path / "relay", 2, 1)
    statement = Statements("holdfast.relay", "accept.sql")["receiptable"]
    with closing(open_to_read(tmp_path / "relay" / "relay.db")) as engine, engine.read() as transaction:
        found = transaction.lookup(statement, ("mesh", "member", "event_id"), [("m", "a", b"1"), ("m", "b", b"2")])
        wanted = "WITH wanted (mesh, member, event_id) AS (SELECT DISTINCT * FROM (VALUES ('m', 'a', x'31'), ('m', 'b', x'32')))"
        steps = [str(row[3]) for row in transaction.rows(f"EXPLAIN QUERY PLAN {wanted} {statement}")]
    assert found == []
    assert [step for step in steps if "delivery" in step] == [
        "SEARCH delivery USING PRIMARY KEY (mesh=? AND member=? AND seq=?)"
    ]


@pytest.mark.skipif(MEASURED, reason="plans are the same")
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("last_old_message", ["SEARCH message USING COVERING INDEX message_by_time (accepted_at<?)"]),
        (
            "settled_messages",
            [
                "SEARCH message USING INTEGER PRIMARY KEY (rowid<?)",
                "CORRELATED SCALAR SUBQUERY 1",
                "SEARCH delivery USING INDEX delivery_by_seq (seq=?)",
            ],
        ),
        ("time_at", ["SEARCH history USING INTEGER PRIMARY KEY (rowid=?)"]),
    ],
)
def test_the_sweep_of_messages_looks_at_none_that_is_younger_than_it_takes(
    database: Path, name: str, steps: list[str]
) -> None:
    statement = Statements("holdfast.relay", "sweep.sql")[name]
    parameters = dict.fromkeys(re.findall(r":(\w+)", statement), None)
    with closing(open_to_read(database)) as engine, engine.read() as transaction:
        found = [str(row[3]) for row in transaction.rows(f"EXPLAIN QUERY PLAN {statement}", parameters)]
    assert found == steps
