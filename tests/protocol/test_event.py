"""Events are read strictly, cannot be changed unseen, and are the same events to a second implementation."""

import hashlib
import json
from typing import Any

import msgspec
import nostr_sdk  # type: ignore[import-untyped]  # the package ships no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol import event as events
from holdfast.protocol import keys
from holdfast.protocol.event import Event
from holdfast.protocol.refusal import Refusal, Refused
from tests.effort import lines_run

SECRET = hashlib.sha256(b"a secret for tests").digest()
AUX = bytes(32)
CREATED_AT = 1_800_000_000

CONTROLS = "".join(map(chr, range(0x20)))
AWKWARD = CONTROLS + '"\\/ \x7f\x80é\u00a0\u2028\u2029\ufeff\uffff😀👩‍👩‍👧<>&\'\\u0041\\n::":'
TEXTS = [AWKWARD, *AWKWARD, "", "\\", '"', "\\\\", '\\"', "a" * 3000, "日本語", "e\u0301"]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TAGS = st.lists(st.lists(TEXT, min_size=1, max_size=4), max_size=5)


def signed(
    content: str = "hello", tags: Any = (("t", "x"), ("p", "ab" * 32, "wss://relay:1")), kind: int = 4201
) -> Event:
    return events.sign_event(SECRET, CREATED_AT, kind, tags, content, AUX)


SIGNED = signed()


def changed(**fields: Any) -> bytes:
    """The signed event with some fields changed, added, or (as `...`) left out."""
    members = json.loads(events.encode(SIGNED)) | fields
    return json.dumps({name: value for name, value in members.items() if value is not ...}).encode()


def refusal_of(raw: bytes | str) -> Refused:
    with pytest.raises(Refused) as refused:
        events.decode(raw)
    return refused.value


def test_a_signed_event_verifies_and_reads_back() -> None:
    read = events.decode(events.encode(SIGNED))
    assert read == SIGNED
    assert events.decode(events.encode(SIGNED).decode()) == SIGNED
    events.verify(read)
    assert read.pubkey == keys.public_key(SECRET)


def test_the_canonical_bytes_are_spelled_as_the_rules_say() -> None:
    content = 'a\n"\\\r\t\b\f\x00\x01\x1f\x7f/é\u2028😀'
    assert events.canonical_bytes("ab", 1, 2, [["t", content]], content) == (
        b'[0,"ab",1,2,[["t",'
        + (quoted := b'"a\\n\\"\\\\\\r\\t\\b\\f\\u0000\\u0001\\u001f\x7f/\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80"')
        + b"]],"
        + quoted
        + b"]"
    )


@given(TEXT, TAGS)
def test_the_canonical_bytes_are_those_of_the_standard_library(content: str, tags: list[list[str]]) -> None:
    twin = json.dumps([0, "ab", 1, 2, tags, content], ensure_ascii=False, separators=(",", ":")).encode()
    assert events.canonical_bytes("ab", 1, 2, tags, content) == twin


@settings(max_examples=50)
@given(TEXT, TAGS, st.integers(0, 65_535), st.integers(0, events.CREATED_AT_MAX_S))
def test_any_event_round_trips_and_verifies(content: str, tags: list[list[str]], kind: int, created_at: int) -> None:
    event = events.sign_event(SECRET, created_at, kind, tags, content, AUX)
    assert (event.content, event.kind, event.created_at) == (content, kind, created_at)
    assert event.tags == tuple(tuple(tag) for tag in tags)
    assert events.decode(events.encode(event)) == event
    events.verify(event)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_our_events_verify_with_a_second_implementation(text: str) -> None:
    event = signed(text, [["t", text, text], ["x"]])
    theirs = nostr_sdk.Event.from_json(events.encode(event).decode())
    assert theirs.verify()
    assert theirs.id().to_hex() == event.id
    assert theirs.content() == text
    assert [tag.to_vec() for tag in theirs.tags()] == [["t", text, text], ["x"]]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_events_of_a_second_implementation_verify_here(text: str) -> None:
    author = nostr_sdk.Keys.parse(SECRET.hex())
    builder = nostr_sdk.EventBuilder(nostr_sdk.Kind(4201), text)
    theirs = builder.tags([nostr_sdk.Tag.parse(["t", text, text])]).finalize(author)
    for spelled in (theirs.as_json(), theirs.as_pretty_json()):
        event = events.decode(spelled)
        events.verify(event)
        assert event.content == text
        assert event.tags == (("t", text, text),)


@pytest.mark.parametrize("field", ["id", "pubkey", "created_at", "kind", "tags", "content"])
def test_a_second_implementation_refuses_what_we_refuse(field: str) -> None:
    other = {
        "id": "00" * 32,
        "pubkey": keys.public_key(b"\x01" * 32),
        "created_at": 1,
        "kind": 1,
        "tags": [],
        "content": "",
    }
    raw = changed(**{field: other[field]})
    with pytest.raises(Refused):
        events.verify(events.decode(raw))
    assert not nostr_sdk.Event.from_json(raw.decode()).verify()


def assert_not_taken_for(original: Event, raw: bytes) -> None:
    """Whatever the bytes are, they are refused as an event or as an authentic one."""
    try:
        event = events.decode(raw)
        events.verify(event)
    except Refused:
        return
    pytest.fail(f"a changed event passed: {raw!r} for {original!r}")


@pytest.mark.parametrize("content", ["hello", AWKWARD.strip(CONTROLS) + "\n\t\r\b\f\\"], ids=ascii)
def test_no_single_byte_of_an_event_can_be_changed(content: str) -> None:
    event = signed(content, [["t", "x"]])
    raw = events.encode(event)
    replacements = b'0a:",\\ \x00\xff{]'
    for position, byte in enumerate(raw):
        for replacement in {*replacements, byte ^ 0x01, byte ^ 0x20, byte ^ 0x80} - {byte}:
            assert_not_taken_for(event, raw[:position] + bytes((replacement,)) + raw[position + 1 :])


def test_no_single_byte_can_be_lost_or_inserted_or_doubled_and_still_say_something_else() -> None:
    raw = events.encode(SIGNED)
    for position in range(len(raw)):
        assert_not_taken_for(SIGNED, raw[:position] + raw[position + 1 :])
        doubled = raw[: position + 1] + raw[position:]
        assert_not_taken_for(SIGNED, doubled)


def test_the_case_of_an_escape_is_spelling_and_not_content() -> None:
    event = signed("\x1f")
    raw = events.encode(event)
    assert raw.count(b"\\u001f") == 1
    assert events.decode(raw.replace(b"\\u001f", b"\\u001F")) == event


def test_spaces_and_the_order_of_fields_are_spelling_and_not_content() -> None:
    members = dict(reversed(json.loads(events.encode(SIGNED)).items()))
    assert events.decode(json.dumps(members, indent=3)) == SIGNED


ENCODED = events.encode(SIGNED)


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"", "truncated"),
        (b"null", "Expected `object`, got `null`"),
        (b"[]", "Expected `object`, got `array`"),
        (b"\xef\xbb\xbf" + ENCODED, "malformed"),
        (ENCODED[:-1], "truncated"),
        (ENCODED + b"x", "trailing characters"),
        (ENCODED + ENCODED, "trailing characters"),
        *((changed(**{name: ...}), f"missing required field `{name}`") for name in Event.__struct_fields__),
        *((changed(**{name: None}), rf"got `null` - at `\$.{name}`") for name in Event.__struct_fields__),
        (changed(extra=1), "unknown field `extra`"),
        (changed(ID="x"), "unknown field `ID`"),
        (changed(id="ab" * 31), r"length >= 64 - at `\$.id`"),
        (changed(id="ab" * 33), r"length <= 64 - at `\$.id`"),
        (changed(sig="ab" * 63), r"length >= 128 - at `\$.sig`"),
        (changed(id=SIGNED.id.upper()), "id is not lower-case hex"),
        (changed(pubkey=SIGNED.pubkey.upper()), "pubkey is not lower-case hex"),
        (changed(sig=SIGNED.sig.upper()), "sig is not lower-case hex"),
        (changed(pubkey="g" * 64), "pubkey is not lower-case hex"),
        (changed(pubkey="é" * 64), "pubkey is not lower-case hex"),
        (changed(sig="ab " * 42 + "ab"), "sig is not lower-case hex"),
        (changed(id="\n" + SIGNED.id[1:]), "id is not lower-case hex"),
        (changed(kind=-1), r"`int` >= 0 - at `\$.kind`"),
        (changed(kind=65_536), r"`int` <= 65535 - at `\$.kind`"),
        (changed(kind=1.0), r"got `float` - at `\$.kind`"),
        (changed(kind=True), r"got `bool` - at `\$.kind`"),
        (changed(kind="1"), r"got `str` - at `\$.kind`"),
        (changed(created_at=-1), r"`int` >= 0 - at `\$.created_at`"),
        (changed(created_at=events.CREATED_AT_MAX_S + 1), r"`int` <= 9223372036854 - at `\$.created_at`"),
        (changed(created_at=10**30), r"`\$.created_at`"),
        (ENCODED.replace(b"1800000000", b"1" * 5000), r"out of range - at `\$.created_at`"),
        (ENCODED.replace(b"1800000000", b"NaN"), "malformed"),
        (ENCODED.replace(b"1800000000", b"01800000000"), "invalid number"),
        (changed(tags={}), r"Expected `array`, got `object` - at `\$.tags`"),
        (changed(tags=[[]]), r"length >= 1 - at `\$.tags\[0\]`"),
        (changed(tags=["t"]), r"got `str` - at `\$.tags\[0\]`"),
        (changed(tags=[["t", 1]]), r"got `int` - at `\$.tags\[0\]\[1\]`"),
        (changed(tags=[["t", None]]), r"got `null` - at `\$.tags\[0\]\[1\]`"),
        (changed(tags=[["t", ["x"]]]), r"got `array` - at `\$.tags\[0\]\[1\]`"),
        (changed(tags=[["t"]] * (events.TAGS_MAX + 1)), r"length <= 1024 - at `\$.tags`"),
        (changed(tags=[["t"] * (events.VALUES_PER_TAG_MAX + 1)]), r"length <= 64 - at `\$.tags\[0\]`"),
        (
            changed(tags=[["t", "é" * (events.TAG_VALUE_CHARACTERS_MAX + 1)]]),
            r"length <= 4096 - at `\$.tags\[0\]",
        ),
        (changed(content=["x"]), r"got `array` - at `\$.content`"),
        (ENCODED.replace(b"hello", b"\\ud800"), "lone surrogate"),
        (ENCODED.replace(b"hello", b"\\udc00"), "lone surrogate"),
        (ENCODED.replace(b"hello", b"\\ud800\\u0041"), "lone surrogate"),
        (b'{"content":"\\ud800"}', "lone surrogate"),
        (ENCODED.decode().replace("hello", "\ud800"), "lone surrogate"),
        (ENCODED.replace(b"hello", b"\xff"), "not UTF-8"),
        (ENCODED.replace(b"hello", b"\xc0\x80"), "not UTF-8"),
        (ENCODED.replace(b"hello", b"\xed\xa0\x80"), "not UTF-8"),
        (ENCODED.replace(b"hello", b"\x00"), "invalid character"),
        (ENCODED.replace(b"hello", b"\\x41"), "invalid escape"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 80 else "",
)
def test_each_fault_is_refused_by_name(raw: bytes | str, fault: str) -> None:
    refused = refusal_of(raw)
    assert refused.refusal is Refusal.MALFORMED
    assert msgspec.json.decode(msgspec.json.encode(refused.detail)) == refused.detail
    with pytest.raises(Refused, match=fault):
        raise refused


@pytest.mark.parametrize("name", Event.__struct_fields__)
@pytest.mark.parametrize("content", ["hello", "a:b", '":', ':"x":', '\\":', '"id":', "x\\u003a", '\\"id\\":'])
def test_a_field_that_stands_twice_is_refused(name: str, content: str) -> None:
    raw = events.encode(signed(content))
    member = json.dumps(name) + ":" + json.dumps(json.loads(raw)[name])
    escaped = f'"\\u{ord(name[0]):04x}{name[1:-1]}\\u{ord(name[-1]):04X}" \n:' + member.split(":", 1)[1]
    assert events.decode(raw).content == content
    for again in (member, escaped):
        for doubled in (b"{" + again.encode() + b"," + raw[1:], raw[:-1] + b"," + again.encode() + b"}"):
            assert json.loads(doubled) == json.loads(raw)
            assert refusal_of(doubled).detail == "event: a field stands twice"


@given(TEXT, TAGS)
def test_no_text_is_mistaken_for_a_repeated_field(content: str, tags: list[list[str]]) -> None:
    colons = content.replace("a", ":").replace("b", '":') + '":'
    event = signed(colons, [[*tag, ':"' + colons] for tag in tags])
    assert events.decode(events.encode(event)) == event
    assert events.decode(json.dumps(json.loads(events.encode(event)), indent=1)) == event


def test_the_size_limit_is_exact() -> None:
    room = events.EVENT_BYTES_MAX - len(events.encode(signed("")))
    largest = signed("a" * room)
    assert len(events.encode(largest)) == 65_536
    assert events.decode(events.encode(largest)) == largest
    assert refusal_of(events.encode(largest) + b" ").refusal is Refusal.TOO_LARGE
    with pytest.raises(Refused, match="65537 bytes, at most 65536") as refused:
        signed("a" * (room + 1))
    assert refused.value.refusal is Refusal.TOO_LARGE


def test_the_size_of_a_text_is_counted_in_bytes() -> None:
    assert refusal_of(json.dumps("é" * 40_000, ensure_ascii=False)).refusal is Refusal.TOO_LARGE


def test_limits_of_tags_are_exact() -> None:
    tags = [["t", "x" * events.TAG_VALUE_CHARACTERS_MAX], ["v"] * events.VALUES_PER_TAG_MAX]
    tags += [["n"]] * (events.TAGS_MAX - len(tags))
    assert signed("", tags).tags == tuple(map(tuple, tags))


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": 65_536},
        {"kind": -1},
        {"tags": [[]]},
        {"tags": [["t"]] * 1025},
        {"tags": [["t", 1]]},
        {"content": "\ud800"},
        {"tags": [["\ud800"]]},
    ],
    ids=ascii,
)
def test_what_would_be_refused_is_not_signed(fields: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        signed(**fields)
    assert refused.value.refusal is Refusal.MALFORMED


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"tags":[[[', b'{"tags":[[{"a":', b'{"x":[', b'{"id":{"a":'])
def test_hostile_nesting_is_refused_quickly_and_without_deep_recursion(opening: bytes) -> None:
    raw = (opening * events.EVENT_BYTES_MAX)[: events.EVENT_BYTES_MAX]
    assert refusal_of(raw).refusal is Refusal.MALFORMED
    assert lines_run(lambda: refusal_of(raw)) < 1000


def test_a_strangers_text_is_told_back_short_and_in_ascii() -> None:
    refused = refusal_of(changed(**{"\n\x1b[31m" + "é" * 5000: 1}))
    assert len(refused.detail) < 250
    assert refused.detail.isascii()
    assert refused.detail.isprintable()


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.text(max_size=100))
def test_garbage_is_refused_and_nothing_else_is_raised(raw: bytes | str) -> None:
    assert refusal_of(raw).refusal is Refusal.MALFORMED


@settings(max_examples=200)
@given(st.data())
def test_cut_and_pasted_events_are_refused_and_nothing_else_is_raised(data: st.DataObject) -> None:
    start, end, at = (data.draw(st.integers(0, len(ENCODED))) for _ in range(3))
    piece = ENCODED[min(start, end) : max(start, end)]
    raw = ENCODED[:at] + piece + data.draw(st.binary(max_size=3)) + ENCODED[at:]
    try:
        event = events.decode(raw)
        events.verify(event)
    except Refused:
        return
    assert event == SIGNED  # at most a space was added


def test_a_wrong_id_and_a_wrong_signature_are_different_refusals() -> None:
    other = signed("other")
    wrong_id = msgspec.structs.replace(SIGNED, content="other")
    with pytest.raises(Refused) as refused:
        events.check_id(wrong_id)
    assert refused.value.refusal is Refusal.BAD_EVENT_ID
    wrong_signature = msgspec.structs.replace(SIGNED, sig=other.sig)
    events.check_id(wrong_signature)
    with pytest.raises(Refused) as refused:
        events.check_signature(wrong_signature)
    assert refused.value.refusal is Refusal.BAD_SIGNATURE


def test_verify_needs_both_the_id_and_the_signature() -> None:
    for fields in ({"content": "other"}, {"id": signed("other").id}, {"sig": signed("other").sig}):
        with pytest.raises(Refused):
            events.verify(msgspec.structs.replace(SIGNED, **fields))


def test_a_key_off_the_curve_is_a_bad_signature() -> None:
    event = msgspec.structs.replace(SIGNED, pubkey="ff" * 32)
    with pytest.raises(Refused) as refused:
        events.check_signature(event)
    assert refused.value.refusal is Refusal.BAD_SIGNATURE


def test_an_event_is_a_value() -> None:
    assert hash(signed()) == hash(SIGNED)
    with pytest.raises(AttributeError):
        SIGNED.content = "other"  # type: ignore[misc]  # what must fail
