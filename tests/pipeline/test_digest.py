"""The digest of rows: the same for the same rows, however they lie, and another for any others."""

import hashlib
from datetime import UTC, date, datetime
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pytest

from holdfast.pipeline import digest
from holdfast.pipeline.digest import Digest
from holdfast.pipeline.latency import quantiles

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.int64()),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("names", pa.list_(pa.string())),
        ("pairs", pa.list_(pa.struct([("member", pa.string()), ("outcome", pa.string())]))),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "text": "one",
        "number": -1,
        "raw": b"\x00~",
        "flag": True,
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "day": date(2026, 1, 2),
        "names": ["a", None, "b"],
        "pairs": [{"member": "m", "outcome": "queued"}, {"member": None, "outcome": "full"}],
    },
    {
        "text": "",
        "number": 0,
        "raw": b"",
        "flag": False,
        "at": datetime(1970, 1, 1, tzinfo=UTC),
        "day": date(1970, 1, 1),
        "names": [],
        "pairs": [],
    },
    dict.fromkeys(SCHEMA.names),
    {
        "text": "1:~",
        "number": 2**62,
        "raw": b"3:abc",
        "flag": None,
        "at": None,
        "day": None,
        "names": [""],
        "pairs": None,
    },
]


def batch(rows: list[dict[str, Any]]) -> Any:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def twin(rows: list[dict[str, Any]]) -> str:
    """The same, slowly, from the description alone."""
    sums = [0] * 32
    for row in rows:
        raw = b"".join(_framed(row[name]) for name in SCHEMA.names)
        bits = hashlib.sha512(b"\x00" + raw).digest() + hashlib.sha512(b"\x01" + raw).digest()
        for lane in range(32):
            sums[lane] += int.from_bytes(bits[4 * lane : 4 * lane + 4], "big")
    return b"".join((one % 2**32).to_bytes(4, "big") for one in sums).hex()


def _framed(value: Any) -> bytes:
    if value is None:
        return b"~"
    raw = _plain(value)
    return str(len(raw)).encode() + b":" + raw


def _plain(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"".join(_framed(part) for part in value.values())
    if isinstance(value, list):
        return b"".join(map(_framed, value))
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return str(value).lower().encode()
    if isinstance(value, datetime):
        return str(round(value.timestamp() * 1_000_000)).encode()
    if isinstance(value, date):
        return str((value - date(1970, 1, 1)).days).encode()
    return str(value).encode()


def test_the_digest_is_what_its_description_says() -> None:
    assert digest.of_rows(batch(ROWS)).text() == twin(ROWS)
    for row in ROWS:
        assert digest.of_rows(batch([row])).text() == twin([row])


def test_the_digest_does_not_depend_on_the_order_or_on_how_rows_are_parted() -> None:
    shuffled = ROWS * 3
    Random(1).shuffle(shuffled)
    parts = [digest.of_rows(batch(shuffled[at : at + 5])) for at in range(0, len(shuffled), 5)]
    assert sum(parts, Digest()) == digest.of_rows(batch(ROWS * 3))


@pytest.mark.parametrize("name", SCHEMA.names)
def test_an_absent_value_an_empty_one_and_another_one_differ(name: str) -> None:
    seen = {digest.of_rows(batch([{**ROWS[0], name: row[name]}])).text() for row in ROWS[:3]}
    assert len(seen) == 3


def test_values_do_not_run_into_each_other() -> None:
    whole = {**ROWS[0], "names": ["ab"], "text": "c"}
    parted = [
        {**whole, "names": ["a", "b"]},
        {**whole, "names": ["abc"], "text": ""},
        {**whole, "names": ["a"], "text": "bc"},
    ]
    seen = {digest.of_rows(batch([row])).text() for row in [whole, *parted]}
    assert len(seen) == 4


def test_a_digest_survives_being_written_down() -> None:
    found = digest.of_rows(batch(ROWS))
    assert Digest.of_text(found.rows, found.text()) == found


def test_quantiles_are_the_upper_edges_of_their_buckets() -> None:
    found = quantiles([(640, 90), (672, 9), (704, 1)])  # an octave is 32 buckets: 1, 2 and 4 · 2**20 µs
    edge = 2 ** (1 / 32)
    assert found == pytest.approx({"p50": 1.048576 * edge, "p90": 1.048576 * edge, "p99": 2.097152 * edge})
