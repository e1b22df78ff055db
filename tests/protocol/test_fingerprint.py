"""Equal requests have equal fingerprints, different ones different ones, and the published ones hold."""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.fingerprint import (
    META_BYTES_MAX,
    META_DEPTH_MAX,
    META_VALUES_MAX,
    DestinationKind,
    Priority,
    Request,
    canonical_json,
    fingerprint,
    fingerprint_prefix,
)
from holdfast.protocol.refusal import Refusal, Refused
from tests.effort import lines_run

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "vectors" / "jcs"

HELLO = Request(destination_kind=DestinationKind.DM, destination_ref="alice", body=b"hello")
FULL = Request(
    destination_kind=DestinationKind.TOPIC,
    destination_ref="alerts",
    body=b"body",
    reply_to="msg_1",
    priority=Priority.LOW,
    meta={"a": 1},
    object_id=b"\x01" * 32,
    mentions=("alice", "bob"),
    expires_at=1_800_000_000_000_000,
    not_before=1_700_000_000_000_000,
)

PUBLISHED = [
    (HELLO, "7c09ad87bc0963af7597220b97da5788dadae89471fcc1c6685f2f53fdd204cf"),
    (
        Request(
            destination_kind=DestinationKind.TOPIC,
            destination_ref="alerts",
            priority=Priority.NOW,
            meta={"z": 1, "a": 2},
            body=b"OOM detected",
        ),
        "34e67cfc6e8f82dda707f6fe3bd5d6a3a4d7bdfefc529104f43fe5075fead78b",
    ),
    (
        Request(
            destination_kind=DestinationKind.DM,
            destination_ref="ab" * 32,
            reply_to="msg_01HQX",
            priority=Priority.LOW,
            meta={"a": {"c": 3, "b": [1, 2]}},
            body="héllo".encode(),
        ),
        "0dd1c9509f0dbc838eda2278c76efb5e14964365637537ba559e7152aa97d14b",
    ),
    (
        Request(destination_kind=DestinationKind.QUEUE, destination_ref="q-1", body=b""),
        "fe81c3d668b71acafe162925e4977fcf02d26c916074de5c778a2d4f2fe75eb3",
    ),
]

CHANGES: list[dict[str, Any]] = [
    {"destination_kind": DestinationKind.QUEUE},
    {"destination_ref": "alert"},
    {"body": b"body "},
    {"reply_to": "msg_2"},
    {"reply_to": None},
    {"priority": Priority.NOW},
    {"meta": {"a": 2}},
    {"meta": {"a": "1"}},
    {"meta": None},
    {"object_id": b"\x02" * 32},
    {"object_id": None},
    {"mentions": ("bob", "alice")},
    {"mentions": ()},
    {"expires_at": 1_800_000_000_000_001},
    {"expires_at": None},
    {"not_before": 1_700_000_000_000_001},
    {"not_before": None},
]


def nested(depth: int) -> Any:
    """So many arrays and objects inside each other."""
    value: Any = {}
    for level in range(depth - 1):
        value = {"a": value} if level % 2 else [value]
    return value


@pytest.mark.parametrize(("request_", "expected"), PUBLISHED)
def test_the_published_fingerprints_hold(request_: Request, expected: str) -> None:
    assert fingerprint(request_).hex() == expected


def test_the_layout_is_six_closed_fields_and_the_body_hash_in_hex() -> None:
    meta = (
        b'{"a":1,"holdfast.expires_at":1800000000000000,"holdfast.mentions":["alice","bob"],'
        b'"holdfast.not_before":1700000000000000,"holdfast.object_id":"' + b"01" * 32 + b'"}'
    )
    body = hashlib.sha256(b"body").hexdigest().encode()
    laid_out = b"1\x00topic\x00alerts\x00msg_1\x00low\x00" + meta + b"\x00" + body
    assert fingerprint(FULL) == hashlib.sha256(laid_out).digest()


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_any_change_of_a_request_changes_its_fingerprint(change: dict[str, Any]) -> None:
    assert fingerprint(msgspec.structs.replace(FULL, **change)) != fingerprint(FULL)


def test_absent_and_empty_meta_are_the_same() -> None:
    assert fingerprint(msgspec.structs.replace(HELLO, meta={})) == fingerprint(HELLO)


def test_the_order_of_meta_keys_does_not_count() -> None:
    one = msgspec.structs.replace(HELLO, meta={"b": {"y": 1, "x": 2}, "a": 0})
    other = msgspec.structs.replace(HELLO, meta={"a": 0, "b": {"x": 2, "y": 1}})
    assert fingerprint(one) == fingerprint(other)


def test_an_object_id_of_zeros_is_one_that_was_not_given() -> None:
    assert fingerprint(msgspec.structs.replace(HELLO, object_id=bytes(32))) == fingerprint(HELLO)


def test_an_expiry_at_zero_is_given() -> None:
    assert fingerprint(msgspec.structs.replace(HELLO, expires_at=0)) != fingerprint(HELLO)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_an_object_id_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(Refused, match="object_id has") as refused:
        fingerprint(msgspec.structs.replace(HELLO, object_id=b"\x01" * size))
    assert refused.value.refusal is Refusal.MALFORMED


@pytest.mark.parametrize("key", ["holdfast.", "holdfast.object_id", "holdfast.x"])
def test_callers_cannot_use_reserved_meta_keys(key: str) -> None:
    with pytest.raises(Refused, match="reserved") as refused:
        fingerprint(msgspec.structs.replace(HELLO, meta={key: 1}))
    assert refused.value.refusal is Refusal.MALFORMED


@pytest.mark.parametrize("key", ["holdfast", "Holdfast.x", "x.holdfast."])
def test_keys_that_only_look_reserved_are_free(key: str) -> None:
    assert fingerprint(msgspec.structs.replace(HELLO, meta={key: {"holdfast.x": 1}})) != fingerprint(HELLO)


@pytest.mark.parametrize("field", ["destination_ref", "reply_to"])
@pytest.mark.parametrize(("text", "fault"), [("a\x00b", "NUL"), ("\ud800", "not valid Unicode")])
def test_a_text_that_would_make_the_fields_ambiguous_is_refused(field: str, text: str, fault: str) -> None:
    with pytest.raises(Refused, match=f"{field} .*{fault}") as refused:
        fingerprint(msgspec.structs.replace(HELLO, **{field: text}))
    assert refused.value.refusal is Refusal.MALFORMED


def test_a_nul_inside_meta_is_escaped_and_harmless() -> None:
    assert canonical_json({"a\x00": "\x00"}) == b'{"a\\u0000":"\\u0000"}'


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (float("nan"), "not finite"),
        (float("inf"), "not finite"),
        (float("-inf"), "not finite"),
        (2**53, "beyond"),
        (-(2**53), "beyond"),
        (10**400, "beyond"),
        ("\ud800", "non-UTF-8"),
        ({"\ud800": 1}, "key that is not valid Unicode"),
        ({1: 1}, "keys must be strings"),
        (b"bytes", "unsupported type"),
    ],
)
def test_what_canonical_json_cannot_say_is_refused(value: Any, fault: str) -> None:
    for meta in ({"a": value}, {"a": [{"b": value}]}):
        with pytest.raises(Refused, match=fault) as refused:
            fingerprint(msgspec.structs.replace(HELLO, meta=meta))
        assert refused.value.refusal is Refusal.MALFORMED


def test_a_key_that_is_not_a_text_is_refused_wherever_it_stands() -> None:
    for meta in ({1: 1}, {None: 1}, {("a",): 1}):
        with pytest.raises(Refused, match="keys must be strings") as refused:
            fingerprint(msgspec.structs.replace(HELLO, meta=meta))
        assert refused.value.refusal is Refusal.MALFORMED


def test_the_outermost_exact_integers_are_allowed() -> None:
    assert canonical_json([2**53 - 1, 1 - 2**53]) == b"[9007199254740991,-9007199254740991]"


def test_a_time_too_far_away_for_json_is_refused() -> None:
    with pytest.raises(Refused, match="beyond"):
        fingerprint(msgspec.structs.replace(HELLO, expires_at=2**53))


def test_meta_may_be_nested_up_to_the_limit_and_no_deeper() -> None:
    assert json.loads(canonical_json(nested(META_DEPTH_MAX))) == nested(META_DEPTH_MAX)
    with pytest.raises(Refused, match="nested deeper than 32"):
        canonical_json(nested(META_DEPTH_MAX + 1))


def test_tuples_are_arrays_and_nested_no_deeper_than_they() -> None:
    def tuples(depth: int) -> Any:
        value: Any = ()
        return functools.reduce(lambda inner, _: (inner,), range(depth - 1), value)

    assert canonical_json(tuples(META_DEPTH_MAX)) == b"[" * META_DEPTH_MAX + b"]" * META_DEPTH_MAX
    for depth in (META_DEPTH_MAX + 1, 200_000):
        with pytest.raises(Refused, match="nested deeper than 32"):
            canonical_json(tuples(depth))


def deep(value: Any) -> Any:
    """A value at the deepest place there is."""
    return functools.reduce(lambda inner, _: [inner], range(META_DEPTH_MAX), value)


LARGEST = [
    "x" * (META_BYTES_MAX - 2),
    deep("x" * (META_BYTES_MAX - 2 - 2 * META_DEPTH_MAX)),
    ["x" * ((META_BYTES_MAX - 1) // 64 - 3)] * 64,
    {"x" * (META_BYTES_MAX - 6): 0},
    [0] * META_VALUES_MAX,
    dict.fromkeys(map(str, range(META_VALUES_MAX)), 0),
    [[0] * (META_VALUES_MAX // 2 - 1)] * 2,
]
TOO_LARGE = [
    "x" * (META_BYTES_MAX - 1),
    deep("x" * (META_BYTES_MAX - 1)),
    ["x" * 1100] * 64,
    {"x" * META_BYTES_MAX: 0},
    [0] * (META_VALUES_MAX + 1),
    (0,) * (META_VALUES_MAX + 1),
    dict.fromkeys(map(str, range(META_VALUES_MAX + 1)), 0),
    [[0] * (META_VALUES_MAX // 2)] * 2,
    deep([0] * META_VALUES_MAX)[0],
]


@pytest.mark.parametrize("value", LARGEST, ids=lambda value: type(value).__name__)
def test_the_largest_meta_is_taken(value: Any) -> None:
    written = canonical_json(value)
    assert len(written) <= META_BYTES_MAX
    assert json.loads(written) == value


@pytest.mark.parametrize("value", TOO_LARGE, ids=lambda value: type(value).__name__)
def test_a_larger_meta_is_refused(value: Any) -> None:
    with pytest.raises(Refused, match="meta has over") as refused:
        canonical_json(value)
    assert refused.value.refusal is Refusal.TOO_LARGE


# Made when they are wanted: hundreds of thousands of objects would be in the way of everything else in this process.
MEGABYTES: dict[str, Callable[[], dict[str, Any]]] = {
    "numbers": lambda: {"a": list(range(170_000))},
    "arrays": lambda: {"a": [[] for _ in range(330_000)]},
    "keys": lambda: {str(number): number for number in range(80_000)},
    "text": lambda: {"a": "x" * 1_000_000},
    "objects": lambda: {"a": [{"b": number} for number in range(90_000)]},
    "texts": lambda: {"a": [[["x" * 100] * 10] * 10] * 90},
}


@pytest.mark.parametrize("name", MEGABYTES)
def test_a_megabyte_of_meta_is_refused_before_it_costs_anything(name: str) -> None:
    meta = MEGABYTES[name]()
    assert len(json.dumps(meta)) > 900_000

    def refuse() -> None:
        with pytest.raises(Refused, match="too_large"):
            fingerprint(msgspec.structs.replace(HELLO, meta=meta))

    assert lines_run(refuse) < 200_000  # two for each key; to write it all down in canonical form takes millions


def test_nesting_of_any_depth_is_refused_without_deep_recursion() -> None:
    with pytest.raises(Refused, match="nested deeper") as refused:
        fingerprint(msgspec.structs.replace(HELLO, meta={"a": nested(200_000)}))
    assert refused.value.refusal is Refusal.MALFORMED


def test_the_prefix_is_sixteen_hex_digits() -> None:
    assert fingerprint_prefix(fingerprint(HELLO)) == "7c09ad87bc0963af"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def utf16_sorted(value: Any) -> Any:
    """The slow twin of the key order: sort by UTF-16 code units, inside out."""
    if isinstance(value, dict):
        ordered = sorted(value.items(), key=lambda item: item[0].encode("utf-16be"))
        return {key: utf16_sorted(inner) for key, inner in ordered}
    return [utf16_sorted(inner) for inner in value] if isinstance(value, list) else value


@given(JSON)
def test_canonical_json_says_the_same_in_one_spelling(value: Any) -> None:
    written = canonical_json(value)
    assert json.loads(written) == value
    assert written == json.dumps(utf16_sorted(value), ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (333333333.33333329, b"333333333.3333333"),
        (1e30, b"1e+30"),
        (4.50, b"4.5"),
        (2e-3, b"0.002"),
        (1e-27, b"1e-27"),
        (-0.0, b"0"),
        (1e21, b"1e+21"),
        (1e20, b"100000000000000000000"),
        (5e-324, b"5e-324"),
        (1.0, b"1"),
    ],
)
def test_numbers_are_written_as_ecmascript_writes_them(number: float, written: bytes) -> None:
    assert canonical_json(number) == written


@pytest.mark.skipif(not VECTORS.is_dir(), reason="the published RFC 8785 files are not beside this repository")
def test_the_published_canonical_files_hold() -> None:
    names = sorted(path.name for path in (VECTORS / "input").iterdir())
    assert len(names) >= 6
    for name in names:
        value = json.loads((VECTORS / "input" / name).read_bytes())
        assert canonical_json(value) == (VECTORS / "output" / name).read_bytes().rstrip(b"\n"), name
