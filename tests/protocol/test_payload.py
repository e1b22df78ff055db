"""The sealed plaintext: one encoding per value, and nothing else is read."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import fingerprint
from holdfast.protocol import payload as payloads
from holdfast.protocol.payload import Payload, canonical_meta, decode, encode
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.tags import INTEGER_MAX
from tests.effort import lines_run

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_MAX, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
metas = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), json_values, max_size=4)
payload_values = st.builds(
    Payload,
    object_id=st.binary(min_size=32, max_size=32),
    meta=metas.map(canonical_meta),
    body=st.binary(max_size=300),
    previous_sequence=st.none() | st.integers(0, INTEGER_MAX),
)


def slow_encode(payload: Payload) -> bytes:
    """The layout once more, written with `struct`."""
    meta = payload.meta or b""
    previous = payload.previous_sequence
    return struct.pack(
        f">B32sQI{len(meta)}sI{len(payload.body)}s",
        1,
        payload.object_id,
        0 if previous is None else previous + 1,
        len(meta),
        meta,
        len(payload.body),
        payload.body,
    )


@given(payload_values)
def test_a_payload_survives_its_bytes(payload: Payload) -> None:
    assert encode(payload) == slow_encode(payload)
    assert decode(encode(payload)) == payload


@given(payload_values, st.data())
def test_changed_bytes_never_read_as_the_same_payload(payload: Payload, data: st.DataObject) -> None:
    sound = encode(payload)
    place = data.draw(st.integers(0, len(sound) - 1))
    flipped = bytearray(sound)
    flipped[place] ^= data.draw(st.integers(1, 255))
    try:
        other = decode(bytes(flipped))
    except Refused:
        return
    assert other != payload
    assert encode(other) == flipped


@given(st.binary(max_size=120).map(lambda tail: b"\x01" + tail))
def test_whatever_is_read_is_written_back_the_same(data: bytes) -> None:
    try:
        payload = decode(data)
    except Refused:
        return
    assert encode(payload) == data


@given(payload_values)
def test_no_payload_is_the_start_of_another(payload: Payload) -> None:
    sound = encode(payload)
    for end in range(len(sound)):
        with pytest.raises(Refused, match="malformed: payload ends after"):
            decode(sound[:end])
    with pytest.raises(Refused, match="payload has 1 bytes after its body"):
        decode(sound + b"\0")


EXAMPLES = {
    "nothing but a version": Payload(body=b""),
    "a first message": Payload(body=b"hello"),
    "a message after sequence 0": Payload(body=b"hello", previous_sequence=0),
    "a body of bytes": Payload(body=bytes(range(256))),
    "everything": Payload(
        object_id=bytes(range(32)),
        meta=canonical_meta({"z": 1, "a": [True, None, 1.5, "héllo"], "big": 1e20}),
        body="grüße".encode(),
        previous_sequence=INTEGER_MAX,
    ),
}


def test_the_golden_payloads_have_not_changed(golden: Callable[[str, object], None]) -> None:
    written = [{"name": name, "hex": encode(payload).hex()} for name, payload in EXAMPLES.items()]
    golden("payload.json", written)
    stored = json.loads((Path(__file__).parent / "golden" / "payload.json").read_text())
    assert {case["name"]: decode(bytes.fromhex(case["hex"])) for case in stored} == EXAMPLES


def test_the_largest_content_makes_a_payload_within_its_limit() -> None:
    meta = canonical_meta({"k": "v" * 992})
    assert meta is not None
    largest = Payload(
        object_id=b"\xff" * 32,
        meta=meta,
        body=b"x" * (payloads.CONTENT_BYTES_MAX - len(meta)),
        previous_sequence=INTEGER_MAX,
    )
    assert len(meta) == 1000
    assert len(encode(largest)) == 40_049 <= payloads.PAYLOAD_BYTES_MAX == 40_960
    assert decode(encode(largest)) == largest


@pytest.mark.parametrize("meta", [None, b'{"k":"v"}'])
def test_one_byte_more_of_content_is_too_large(meta: bytes | None) -> None:
    body = b"x" * (40_001 - len(meta or b""))
    with pytest.raises(Refused) as refused:
        Payload(body=body, meta=meta)
    assert refused.value.refusal is Refusal.TOO_LARGE
    assert refused.value.detail == "body and meta have 40001 bytes, at most 40000 allowed"


HEADER = b"\x01" + bytes(32) + bytes(8)


def raw(meta: bytes = b"", body: bytes = b"", header: bytes = HEADER) -> bytes:
    return header + len(meta).to_bytes(4, "big") + meta + len(body).to_bytes(4, "big") + body


BAD_BYTES = [
    (b"", Refusal.MALFORMED, "payload ends after 0 bytes, inside its header"),
    (b"\x01", Refusal.MALFORMED, "payload ends after 1 bytes, inside its header"),
    (b"\x00" + raw()[1:], Refusal.MALFORMED, "payload version 0 is not 1"),
    (b"\x02", Refusal.MALFORMED, "payload version 2 is not 1"),
    (HEADER[:-1], Refusal.MALFORMED, "payload ends after 40 bytes, inside its header"),
    (HEADER, Refusal.MALFORMED, "payload ends after 41 bytes, inside the length of its meta"),
    (HEADER + bytes(4), Refusal.MALFORMED, "payload ends after 45 bytes, inside the length of its body"),
    (HEADER + b"\0\0\0\x01", Refusal.MALFORMED, "payload ends after 45 bytes, its meta would end at 46"),
    (
        HEADER + b"\xff" * 4,
        Refusal.MALFORMED,
        f"payload ends after 45 bytes, its meta would end at {45 + 2**32 - 1}",
    ),
    (raw(body=b"ab")[:-1], Refusal.MALFORMED, "payload ends after 50 bytes, its body would end at 51"),
    (raw(body=b"ab") + b"c", Refusal.MALFORMED, "payload has 1 bytes after its body"),
    (raw(body=bytes(40_001)), Refusal.TOO_LARGE, "body and meta have 40001 bytes, at most 40000 allowed"),
    (
        raw(body=bytes(40_960 - 49)),
        Refusal.TOO_LARGE,
        "body and meta have 40911 bytes, at most 40000 allowed",
    ),
    (raw(body=bytes(40_961 - 49)), Refusal.TOO_LARGE, "payload has 40961 bytes, at most 40960 allowed"),
    (
        raw(header=HEADER[:-8] + (INTEGER_MAX + 2).to_bytes(8, "big")),
        Refusal.MALFORMED,
        "previous_sequence 9007199254740992 is over 9007199254740991",
    ),
    (
        raw(header=HEADER[:-8] + b"\xff" * 8),
        Refusal.MALFORMED,
        "previous_sequence 18446744073709551614 is over 9007199254740991",
    ),
]


@pytest.mark.parametrize(("data", "refusal", "detail"), BAD_BYTES)
def test_malformed_bytes_are_refused_with_the_reason(data: bytes, refusal: Refusal, detail: str) -> None:
    with pytest.raises(Refused) as refused:
        decode(data)
    assert (refused.value.refusal, refused.value.detail) == (refusal, detail)


def nested(depth: int) -> bytes:
    """A number inside so many containers."""
    return b'{"a":' + b"[" * (depth - 1) + b"0" + b"]" * (depth - 1) + b"}"


BAD_METAS = [
    (b"{}", "meta has no members: it must be absent instead"),
    (b"[]", "meta is not a JSON object"),
    (b"null", "meta is not a JSON object"),
    (b'"a"', "meta is not a JSON object"),
    (b"{", "meta is not JSON: "),
    (b'{"a":1}x', "meta is not JSON: Extra data"),
    (b'\xef\xbb\xbf{"a":1}', "meta is not JSON: Unexpected UTF-8 BOM"),
    (b'{"a":"\xff"}', "meta is not JSON: 'utf-8' codec"),
    ('{"a":1}'.encode("utf-16"), "meta is not JSON: 'utf-8' codec"),
    (b'{"a":"\\ud800"}', "meta has no canonical JSON: "),
    (b'{"a":NaN}', "meta has a number that is not finite"),
    (b'{"a":1e400}', "meta has a number that is not finite"),
    (b'{"a": 1}', "meta is not in canonical form"),
    (b'{"a":1}\n', "meta is not in canonical form"),
    (b'{"b":1,"a":2}', "meta is not in canonical form"),
    (b'{"a":1,"a":1}', "meta is not in canonical form"),
    (b'{"a":1.0}', "meta is not in canonical form"),
    (b'{"a":-0}', "meta is not in canonical form"),
    (b'{"a":1E3}', "meta is not in canonical form"),
    (b'{"a":"\\u0061"}', "meta is not in canonical form"),
    (b'{"a":"\\/"}', "meta is not in canonical form"),
    (b'{"a":9007199254740993}', "meta is not in canonical form"),
    (b'{"a":' + b"9" * 400 + b"}", "meta has a number that is not finite"),
    (nested(33), "meta is nested deeper than 32 levels"),
    (nested(15_000), "meta is nested deeper than 32 levels"),
]


@pytest.mark.parametrize(("meta", "detail"), BAD_METAS)
def test_meta_that_is_not_one_canonical_object_is_refused(meta: bytes, detail: str) -> None:
    with pytest.raises(Refused) as refused:
        decode(raw(meta=meta))
    assert refused.value.refusal is Refusal.MALFORMED
    assert refused.value.detail.startswith(detail)
    with pytest.raises(Refused):
        Payload(body=b"", meta=meta)


@pytest.mark.parametrize("meta", [nested(32), b'{"a":100000000000000000000}', b'{"a":-9007199254740991}', b'{"":0}'])
def test_meta_at_the_edge_is_taken(meta: bytes) -> None:
    assert decode(raw(meta=meta)).meta == meta


def test_empty_meta_and_no_meta_are_the_same() -> None:
    assert canonical_meta({}) is None
    assert canonical_meta(None) is None
    assert canonical_meta({"b": 1, "a": 2}) == b'{"a":2,"b":1}' == rfc8785.dumps({"b": 1, "a": 2})


@pytest.mark.parametrize("size", [0, 31, 33])
def test_an_object_id_has_32_bytes(size: int) -> None:
    with pytest.raises(Refused, match=f"object_id has {size} bytes, it must have 32"):
        Payload(body=b"", object_id=bytes(size))


def test_a_sequence_is_never_negative() -> None:
    with pytest.raises(Refused, match="previous_sequence -1 is under 0"):
        Payload(body=b"", previous_sequence=-1)


WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"body": "text"}, "body is of type str, not bytes"),
    ({"body": None}, "body is of type NoneType, not bytes"),
    ({"body": b"", "meta": {"a": 1}}, "meta is of type dict, not bytes"),
    ({"body": b"", "meta": '{"a":1}'}, "meta is of type str, not bytes"),
    ({"body": b"", "object_id": "0" * 32}, "object_id is of type str, not bytes"),
    ({"body": b"", "previous_sequence": 1.0}, "previous_sequence is of type float, not int"),
    ({"body": b"", "previous_sequence": True}, "previous_sequence is of type bool, not int"),
]


@pytest.mark.parametrize(("fields", "detail"), WRONG_TYPES)
def test_values_of_other_types_are_refused(fields: dict[str, Any], detail: str) -> None:
    with pytest.raises(Refused) as refused:
        Payload(**fields)
    assert (refused.value.refusal, refused.value.detail) == (Refusal.MALFORMED, detail)


@pytest.mark.parametrize("meta", [b'{"a":[' + b"0," * 19_990 + b"0]}", b'{"a":[' + b"[]," * 13_000 + b"0]}"])
def test_opened_bytes_with_more_values_than_a_meta_may_have_are_refused_cheaply(meta: bytes) -> None:
    def refuse() -> None:
        with pytest.raises(Refused, match="too_large: meta has over 4096 values"):
            decode(raw(meta=meta))

    assert lines_run(refuse) < 3 * meta.count(b",")


def test_no_object_is_spelled_once() -> None:
    assert Payload(body=b"").object_id is fingerprint.NO_OBJECT
    assert bytes(32) == fingerprint.NO_OBJECT
