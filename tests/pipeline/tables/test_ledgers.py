"""Who decided what and who used how much, of entries that are odd or damaged: what is not known is absent, and nothing else is."""

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.pipeline import few
from holdfast.pipeline.table import Table
from holdfast.pipeline.tables.audit_log import audit_log
from holdfast.pipeline.tables.history import SCHEMA as HISTORY
from holdfast.pipeline.tables.usage import COUNTS, usage

RELAY, DEVICE = "relay:x", "device:mesh-1/ann"
AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
ASKED = b'{"action":"add_member","member":"ben"}'

Values = dict[str, Any]


def frame(spark: SparkSession, entries: list[Values]) -> DataFrame:
    always = {
        "log_id": b"A" * 16,
        "at": AT,
        "day": AT.date(),
        "recipients": [],
        "mentions": [],
        "detail": b"",
        "chain": b"",
    }
    rows = [{"origin": RELAY, "mesh": "mesh-1", **always, "seq": seq, **one} for seq, one in enumerate(entries, 1)]
    return few.frame(spark, HISTORY, pa.Table.from_pylist(rows, few.arrow_schema(HISTORY)))


def made(table: Table, **inputs: DataFrame) -> list[Values]:
    assert table.function is not None
    return [row.asDict() for row in table.function(**inputs).collect()]


DECISIONS: dict[
    str, tuple[Values, tuple[str | None, ...] | None]
] = {  # an entry; actor, action, subject and detail, if it tells
    "asked": ({"kind": "admin", "sender": "ann", "detail": ASKED}, ("ann", "add_member", "ben", ASKED.decode())),
    "asked, of a member": (
        {"kind": "admin", "sender": "ann", "detail": ASKED, "destination_kind": "member", "destination_ref": "ben"},
        ("ann", "add_member", "ben", ASKED.decode()),
    ),
    "asked, in no JSON": ({"kind": "admin", "sender": "ann", "detail": b"{"}, ("ann", "unknown", None, "{")),
    "asked, in no text": ({"kind": "admin", "sender": "ann", "detail": b"\xff"}, ("ann", "unknown", None, None)),
    "asked, by nobody": ({"kind": "admin", "detail": ASKED}, (None, "add_member", "ben", ASKED.decode())),
    "a reader": (
        {"kind": "admin", "sender": "ann", "detail": ASKED, "destination_kind": "consumer", "destination_ref": "lake"},
        (None, "register_consumer", "lake", None),
    ),
    "asked of a device": ({"kind": "admin", "origin": DEVICE, "sender": "ann", "detail": ASKED}, None),
    "moderated": (
        {"kind": "moderated", "destination_ref": "ann", "message_id": "m", "reason": "spam"},
        ("ann", "moderate", "m", "spam"),
    ),
    "moderated, without a reason": ({"kind": "moderated", "message_id": "m"}, (None, "moderate", "m", None)),
    "moderated, for one recipient": ({"kind": "moderated", "recipient": "ben", "message_id": "m"}, None),
    "restored": ({"kind": "restored", "sender": "ann", "detail": b"\xff"}, (None, "restored", None, None)),
    "restored, of a device": ({"kind": "restored", "origin": DEVICE}, (None, "restored", None, None)),
    "pruned": ({"kind": "pruned", "detail": b"\xff"}, (None, "pruned", None, None)),
    "pruned, a message": ({"kind": "pruned", "sender": "ann", "message_id": "m"}, None),
    "pruned, a member's key of a topic": ({"kind": "pruned", "recipient": "ben", "reason": "grant"}, None),
    "requeued": (
        {"kind": "aborted", "origin": DEVICE, "client_message_id": "c", "detail": b"heir"},
        ("ann", "requeue", "c", "heir"),
    ),
    "requeued, of a relay": ({"kind": "aborted", "client_message_id": "c", "detail": b"heir"}, None),
    "accepted": ({"kind": "accepted", "sender": "ann", "detail": ASKED}, None),
    "of no kind": ({"kind": None, "sender": "ann", "detail": ASKED}, None),
}


@pytest.fixture(scope="module")
def told(spark: SparkSession) -> dict[int, Values]:
    entries = frame(spark, [entry for entry, _ in DECISIONS.values()])
    return {row["seq"]: row for row in made(audit_log, new_history=entries)}


@pytest.mark.parametrize(("seq", "name"), list(enumerate(DECISIONS, 1)), ids=list(DECISIONS))
def test_a_decision_is_told_with_what_is_known_of_it(seq: int, name: str, told: dict[int, Values]) -> None:
    entry, expected = DECISIONS[name]
    row = told.get(seq)
    found = None if row is None else tuple(row[one] for one in ("actor", "action", "subject", "detail"))
    assert found == expected
    if row is not None:
        assert (row["day"], row["origin"], row["mesh"]) == (date(2026, 3, 4), entry.get("origin", RELAY), "mesh-1")


BEN = [{"member": "ben", "outcome": "queued"}]
USED: dict[str, tuple[list[Values], Values | None]] = {  # entries; what is counted, and for whom
    "sent": ([{"kind": "accepted", "sender": "ann", "size": 5, "recipients": BEN}], {"ann": (1, 5, 1, 0, 0, 0)}),
    "sent, nobody knows how much": ([{"kind": "accepted", "sender": "ann"}], {"ann": (1, 0, 0, 0, 0, 0)}),
    "sent by nobody": ([{"kind": "accepted", "size": 5, "recipient": "ben"}], {}),
    "sent in no mesh": ([{"kind": "accepted", "sender": "ann", "mesh": None}], {}),
    "sent, as a device tells it": ([{"kind": "accepted", "sender": "ann", "origin": DEVICE}], {}),
    "a receipt": ([{"kind": "receipt", "sender": "ben", "size": 5, "recipients": BEN}], {"ben": (0, 0, 0, 1, 0, 0)}),
    "received": ([{"kind": "delivered", "sender": "ann", "recipient": "ben", "size": 5}], {"ben": (0, 0, 0, 0, 1, 0)}),
    "received by nobody": ([{"kind": "delivered", "sender": "ann"}], {}),
    "missed": (
        [{"kind": kind, "recipient": "ben"} for kind in ("expired", "dropped", "quarantined", "moderated")],
        {"ben": (0, 0, 0, 0, 0, 4)},
    ),
    "moderated for all": ([{"kind": "moderated", "sender": "ann"}], {}),
    "something else": ([{"kind": "pruned", "sender": "ann", "recipient": "ben"}], {}),
    "all of it": (
        [
            {"kind": "accepted", "sender": "ann", "size": 5, "recipients": BEN},
            {"kind": "accepted", "sender": "ann", "size": 7, "recipients": BEN * 2},
            {"kind": "delivered", "recipient": "ann"},
            {"kind": "expired", "recipient": "ben"},
        ],
        {"ann": (2, 12, 3, 0, 1, 0), "ben": (0, 0, 0, 0, 0, 1)},
    ),
}


@pytest.mark.parametrize("name", USED)
def test_what_is_counted_for_whom(name: str, spark: SparkSession) -> None:
    entries, expected = USED[name]
    nothing = few.frame(spark, usage.schema, few.read(usage.schema, []))
    rows = made(usage, old_usage=nothing, new_history=frame(spark, entries))
    assert {row["member"]: tuple(row[one] for one in COUNTS) for row in rows} == expected
