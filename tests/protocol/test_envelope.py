"""The envelope of a message: what the relay may see, in one spelling, and what it may not."""

import itertools
import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import envelope as envelopes
from holdfast.protocol import event as events
from holdfast.protocol.envelope import Destination, Envelope, Head, from_event, sign_message, to_tags
from holdfast.protocol.event import Event
from holdfast.protocol.fingerprint import DestinationKind, Priority
from holdfast.protocol.keys import public_key
from holdfast.protocol.payload import PAYLOAD_BYTES_MAX, Payload, decode, encode
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.sealing import conversation_key, open_sealed, padded_length, seal
from holdfast.protocol.tags import INTEGER_MAX

ALICE, BOB = (1).to_bytes(32, "big"), (2).to_bytes(32, "big")
TOPIC_KEY = bytes(range(32))
NONCE, AUX = b"\x07" * 32, bytes(32)
AT_S = 1_700_000_000
SECRETS = Payload(object_id=b"\xab" * 32, meta=b'{"hidden":"meta"}', body=b"hidden body", previous_sequence=6)
SEALED = seal(conversation_key(ALICE, public_key(BOB)), encode(SECRETS), NONCE)

HEAD = Head(mesh="home", client_message_id="01HQX5N5T8J9V0ABCDEFGHJKMN", epoch=bytes(range(16)), sequence=7)
DIRECT = Envelope(head=HEAD, destination=Destination(DestinationKind.DM, "bob"), recipient_key=public_key(BOB))
FULL = Envelope(
    head=HEAD,
    destination=Destination(DestinationKind.TOPIC, "ops/alerts"),
    key_epoch=3,
    priority=Priority.NOW,
    expires_at=AT_S * 1_000_000 + 1,
    reply_to="order/17:retry=2",
    mentions=("carol", "bob"),
)
QUEUED = Envelope(
    head=msgspec.structs.replace(HEAD, sequence=0),
    destination=Destination(DestinationKind.QUEUE, "builds"),
    key_epoch=1,
    priority=Priority.LOW,
)

LETTERS = "ABCZabcz0189"
identifiers = st.text(LETTERS + "._-", min_size=1, max_size=64).filter(lambda text: text[0] in LETTERS)
references = st.text(st.sampled_from([chr(n) for n in range(33, 127) if chr(n) not in '"\\']), min_size=1, max_size=128)
numbers = st.integers(1, INTEGER_MAX)
heads = st.builds(
    Head,
    mesh=identifiers,
    client_message_id=references,
    epoch=st.binary(min_size=16, max_size=16),
    sequence=st.integers(0, INTEGER_MAX),
)


@st.composite
def envelope_values(draw: st.DrawFn) -> Envelope:
    kind = draw(st.sampled_from(DestinationKind))
    direct = kind is DestinationKind.DM
    return Envelope(
        head=draw(heads),
        destination=Destination(kind, draw(identifiers)),
        recipient_key=draw(st.binary(min_size=32, max_size=32)).hex() if direct else None,
        key_epoch=None if direct else draw(numbers),
        priority=draw(st.sampled_from(Priority)),
        expires_at=draw(st.none() | numbers),
        reply_to=draw(st.none() | references),
        mentions=tuple(draw(st.lists(identifiers, max_size=5, unique=True))),
    )


def event_with(tags: Sequence[Sequence[str]], content: str = SEALED, kind: int = 4201) -> Event:
    """An event that nobody signed: what stands in it is read all the same."""
    return Event("0" * 64, "0" * 64, AT_S, kind, tuple(tuple(tag) for tag in tags), content, "0" * 128)


@given(envelope_values())
def test_an_envelope_survives_its_event(envelope: Envelope) -> None:
    event = sign_message(ALICE, AT_S, envelope, SEALED, AUX)
    received = events.decode(events.encode(event))
    events.verify(received)
    assert from_event(received) == envelope
    assert to_tags(from_event(received)) == received.tags


@given(envelope_values(), st.data())
def test_two_spellings_of_one_envelope_do_not_exist(envelope: Envelope, data: st.DataObject) -> None:
    tags = to_tags(envelope)
    shuffled = tuple(data.draw(st.permutations(tags)))
    try:
        read = from_event(event_with(shuffled))
    except Refused:
        assert shuffled != tags
    else:
        assert (
            to_tags(read) == shuffled
        )  # it differs at most in the order of its mentions, and then says something else
        assert (read == envelope) == (shuffled == tags)


def test_the_recipient_opens_what_the_sender_sealed() -> None:
    event = sign_message(ALICE, AT_S, DIRECT, SEALED, AUX)
    assert decode(open_sealed(conversation_key(BOB, event.pubkey), event.content)) == SECRETS
    assert from_event(event).recipient_key == public_key(BOB)


def test_the_relay_sees_the_tags_of_the_table_and_nothing_of_the_payload() -> None:
    event = sign_message(ALICE, AT_S, FULL, seal(TOPIC_KEY, encode(SECRETS), NONCE), AUX)
    visible = {name for name, *_ in event.tags} | {name for name, *_ in to_tags(DIRECT)}
    assert visible == {rule.name for rule in envelopes.MESSAGE_TAGS}
    raw = events.encode(event)
    for secret in (b"hidden", SECRETS.object_id, SECRETS.object_id.hex().encode()):
        assert secret not in raw


EXAMPLES = {"a direct message": DIRECT, "a topic message with everything": FULL, "a queue message": QUEUED}


def test_the_golden_messages_have_not_changed(golden: Callable[[str, object], None]) -> None:
    direct = conversation_key(ALICE, public_key(BOB))
    keys = {"a direct message": direct}
    signed = {
        name: sign_message(ALICE, AT_S, envelope, seal(keys.get(name, TOPIC_KEY), encode(SECRETS), NONCE), AUX)
        for name, envelope in EXAMPLES.items()
    }
    golden("envelope.json", {name: events.encode(event).decode() for name, event in signed.items()})
    stored = json.loads((Path(__file__).parent / "golden" / "envelope.json").read_text())
    for name, text in stored.items():
        event = events.decode(text)
        events.verify(event)
        assert from_event(event) == EXAMPLES[name]
        assert decode(open_sealed(keys.get(name, TOPIC_KEY), event.content)) == SECRETS


LARGEST_DIRECT = Envelope(
    head=Head(mesh="m" * 64, client_message_id="~" * 128, epoch=b"\xff" * 16, sequence=INTEGER_MAX),
    destination=Destination(DestinationKind.DM, "x" * 64),
    recipient_key="f" * 64,
    priority=Priority.NEXT,
    expires_at=INTEGER_MAX,
    reply_to="~" * 128,
    mentions=tuple(f"{number:02}" + "x" * 62 for number in range(64)),
)


def largest(kind: DestinationKind) -> Envelope:
    """Every field as long as it may be."""
    if kind is DestinationKind.DM:
        return LARGEST_DIRECT
    destination = Destination(kind, "x" * 64)
    return msgspec.structs.replace(LARGEST_DIRECT, destination=destination, recipient_key=None, key_epoch=INTEGER_MAX)


@pytest.mark.parametrize("kind", DestinationKind)
def test_the_largest_payload_fits_under_the_largest_envelope(kind: DestinationKind) -> None:
    sealed = seal(TOPIC_KEY, b"x" * PAYLOAD_BYTES_MAX, NONCE)
    event = sign_message(ALICE, events.CREATED_AT_MAX_S, largest(kind), sealed, AUX)
    assert len(sealed) == envelopes.SEALED_CHARACTERS_MAX == 54_704
    assert len(events.encode(event)) <= events.EVENT_BYTES_MAX == 65_536
    assert from_event(event) == largest(kind)


def test_the_largest_content_of_a_caller_pads_to_the_largest_payload() -> None:
    largest = encode(Payload(body=b"x" * 40_000, object_id=b"x" * 32, previous_sequence=INTEGER_MAX))
    assert padded_length(len(largest)) == PAYLOAD_BYTES_MAX == 40_960
    assert len(seal(TOPIC_KEY, largest, NONCE)) == 54_704


def test_a_payload_of_one_byte_more_fits_into_no_event() -> None:
    assert padded_length(PAYLOAD_BYTES_MAX + 1) == 49_152
    sealed = seal(TOPIC_KEY, b"x" * (PAYLOAD_BYTES_MAX + 1), NONCE)
    with pytest.raises(Refused) as refused:
        sign_message(ALICE, AT_S, DIRECT, sealed, AUX)
    assert (refused.value.refusal, refused.value.detail) == (
        Refusal.TOO_LARGE,
        "content has 65628 characters, at most 54704 allowed",
    )
    with pytest.raises(Refused) as refused:
        events.sign_event(ALICE, 0, 4201, (), sealed, AUX)
    assert refused.value.refusal is Refusal.TOO_LARGE


DIRECT_TAGS, FULL_TAGS = to_tags(DIRECT), to_tags(FULL)
OPTIONAL = {"expires_at", "reply_to", "mention"}


def changed(tags: Sequence[Sequence[str]], name: str, *values: str) -> list[Sequence[str]]:
    """The tags with other values under one name."""
    assert name in {tag[0] for tag in tags}
    return [(name, *values) if tag[0] == name else tag for tag in tags]


def without(tags: Sequence[Sequence[str]], name: str) -> list[Sequence[str]]:
    assert name in {tag[0] for tag in tags}
    return [tag for tag in tags if tag[0] != name]


@pytest.mark.parametrize("tags", [DIRECT_TAGS, FULL_TAGS])
def test_every_tag_that_is_needed_is_missed(tags: Sequence[Sequence[str]]) -> None:
    for name in {tag[0] for tag in tags} - OPTIONAL:
        with pytest.raises(Refused, match=rf"'{name}' is missing|needs {name}"):
            from_event(event_with(without(tags, name)))
    for name in {tag[0] for tag in tags} & OPTIONAL:
        from_event(event_with(without(tags, name)))


@pytest.mark.parametrize("tags", [DIRECT_TAGS, FULL_TAGS])
def test_no_tag_stands_twice_or_with_a_value_too_few_or_too_many(tags: Sequence[Sequence[str]]) -> None:
    for place, tag in enumerate(tags):
        doubled = [*tags[:place], tag, *tags[place:]]
        with pytest.raises(Refused, match=rf"{tag[0]}.* stands (2 times, at most 1 allowed|twice)"):
            from_event(event_with(doubled))
        for values, elements in (((), 1), ((tag[1], ""), 3)):
            with pytest.raises(Refused, match=f"tag '{tag[0]}' has {elements} elements, it must have 2"):
                from_event(event_with([*tags[:place], (tag[0], *values), *tags[place + 1 :]]))


@pytest.mark.parametrize("tags", [DIRECT_TAGS, FULL_TAGS])
def test_no_two_tags_may_change_places(tags: Sequence[Sequence[str]]) -> None:
    for left, right in itertools.combinations(range(len(tags)), 2):
        if tags[left][0] == tags[right][0]:
            continue
        swapped = list(tags)
        swapped[left], swapped[right] = swapped[right], swapped[left]
        with pytest.raises(Refused, match=r"malformed: tag '\w+' stands after '\w+'"):
            from_event(event_with(swapped))


BAD_TAGS = [
    ([], "tag 'mesh' is missing"),
    ([*DIRECT_TAGS, ("p", "x")], "unknown tag 'p'"),
    ([*DIRECT_TAGS, ()], "unknown tag ''"),
    ([*DIRECT_TAGS, ("Mesh", "home")], "unknown tag 'Mesh'"),
    ([*DIRECT_TAGS, ("x" * 99, "")], f"unknown tag '{'x' * 40}...'"),
    ([*DIRECT_TAGS, ("mesh", "home")], "tag 'mesh' stands after 'priority'"),
    (changed(DIRECT_TAGS, "mesh", ""), "mesh is empty"),
    (changed(DIRECT_TAGS, "mesh", "m" * 65), "mesh has 65 characters, at most 64 are allowed"),
    *(
        (
            changed(DIRECT_TAGS, "mesh", bad),
            f"mesh {bad!a} may only have letters, digits, '.', '_' and '-', and start with a letter or digit",
        )
        for bad in ("a b", "a/b", "../a", "-a", ".a", "_", "é", "a\n", "a\0", "\u0661")
    ),
    (changed(DIRECT_TAGS, "client_message_id", ""), "client_message_id is empty"),
    (
        changed(DIRECT_TAGS, "client_message_id", "x" * 129),
        "client_message_id has 129 characters, at most 128 are allowed",
    ),
    *(
        (
            changed(DIRECT_TAGS, "client_message_id", bad),
            f"client_message_id {bad!a} may only have visible ASCII without quotation mark and backslash",
        )
        for bad in ("a b", 'a"b', "a\\b", "a\n", "é", "\x7f", "\0")
    ),
    (changed(DIRECT_TAGS, "epoch", "00" * 15), "epoch has 30 characters, 32 hex digits are needed"),
    (changed(DIRECT_TAGS, "epoch", "00" * 17), "epoch has 34 characters, 32 hex digits are needed"),
    (changed(DIRECT_TAGS, "epoch", "AA" * 16), f"epoch '{'AA' * 16}' is not lower-case hex"),
    (changed(DIRECT_TAGS, "epoch", " 0" * 16), f"epoch '{' 0' * 16}' is not lower-case hex"),
    (changed(DIRECT_TAGS, "sequence", "-1"), "sequence '-1' is not plain base-10 digits"),
    (changed(DIRECT_TAGS, "sequence", "07"), "sequence '07' has a leading zero"),
    (changed(DIRECT_TAGS, "sequence", str(2**53)), "sequence 9007199254740992 is over 9007199254740991"),
    (changed(DIRECT_TAGS, "destination_kind", "DM"), "destination_kind 'DM' is not one of dm, topic, queue"),
    (
        changed(DIRECT_TAGS, "destination_kind", "feed"),
        "destination_kind 'feed' is not one of dm, topic, queue",
    ),
    (changed(DIRECT_TAGS, "destination_kind", "topic"), "a message to a topic may not have recipient_key"),
    (
        changed(FULL_TAGS, "destination_ref", "x" * 65),
        "destination_ref has 65 characters, at most 64 are allowed",
    ),
    (
        changed(FULL_TAGS, "destination_ref", "/ops"),
        "destination_ref '/ops' may only have letters, digits, '.', '_', '-' and '/', and start with a letter or digit",
    ),
    (
        changed(DIRECT_TAGS, "destination_ref", "ops/alerts"),
        "destination_ref 'ops/alerts' may only have letters, digits, '.', '_' and '-', and start with a letter or digit",
    ),
    (without(DIRECT_TAGS, "recipient_key"), "a message to a dm needs recipient_key"),
    (changed(DIRECT_TAGS, "recipient_key", "ff"), "recipient_key has 2 characters, 64 hex digits are needed"),
    (changed(DIRECT_TAGS, "recipient_key", "F" * 64), f"recipient_key '{'F' * 40}...' is not lower-case hex"),
    ([*DIRECT_TAGS[:-1], ("key_epoch", "1"), DIRECT_TAGS[-1]], "a message to a dm may not have key_epoch"),
    (without(FULL_TAGS, "key_epoch"), "a message to a topic needs key_epoch"),
    (
        without(to_tags(QUEUED), "key_epoch"),
        "a message to a queue needs key_epoch",
    ),
    (changed(FULL_TAGS, "key_epoch", "0"), "key_epoch 0 is under 1"),
    (changed(FULL_TAGS, "key_epoch", "+1"), "key_epoch '+1' is not plain base-10 digits"),
    (changed(FULL_TAGS, "priority", ""), "priority '' is not one of now, next, low"),
    (changed(FULL_TAGS, "priority", "high"), "priority 'high' is not one of now, next, low"),
    (changed(FULL_TAGS, "expires_at", "0"), "expires_at 0 is under 1"),
    (changed(FULL_TAGS, "expires_at", "1.5"), "expires_at '1.5' is not plain base-10 digits"),
    (changed(FULL_TAGS, "reply_to", ""), "reply_to is empty"),
    (changed(FULL_TAGS, "reply_to", "x" * 129), "reply_to has 129 characters, at most 128 are allowed"),
    ([*FULL_TAGS, ("mention", "")], "mention is empty"),
    ([*FULL_TAGS, ("mention", "bob")], "mention 'bob' stands twice"),
]


@pytest.mark.parametrize(("tags", "detail"), BAD_TAGS)
def test_malformed_tags_are_refused_with_the_reason(tags: list[list[str]], detail: str) -> None:
    with pytest.raises(Refused) as refused:
        from_event(event_with(tags))
    assert (refused.value.refusal, refused.value.detail) == (Refusal.MALFORMED, detail)


BAD_CONTENT = [
    ("", Refusal.MALFORMED, "content has 0 characters, at least 132 are needed"),
    ("A" * 131, Refusal.MALFORMED, "content has 131 characters, at least 132 are needed"),
    ("hidden body " * 11, Refusal.MALFORMED, "content is not a sealed payload of version 2 in base64"),
    ("B" + SEALED[1:], Refusal.MALFORMED, "content is not a sealed payload of version 2 in base64"),
    ("AQ" + SEALED[2:], Refusal.MALFORMED, "content is not a sealed payload of version 2 in base64"),
    (SEALED[:-1] + "\n", Refusal.MALFORMED, "content is not a sealed payload of version 2 in base64"),
    ("Ag" + "A" * 131, Refusal.MALFORMED, "content is not a sealed payload of version 2 in base64"),
    (SEALED + "A", Refusal.MALFORMED, "content is not a sealed payload of version 2 in base64"),
    (
        SEALED[:50] + "=" + SEALED[51:],
        Refusal.MALFORMED,
        "content is not a sealed payload of version 2 in base64",
    ),
    ("Ag" + "A" * 54_706, Refusal.TOO_LARGE, "content has 54708 characters, at most 54704 allowed"),
]


NOT_SEALED = "content is not a sealed payload of version 2 in base64"


def sealed_bytes(length: int, first: int = 2) -> bytes:
    return bytes((first,)) + b"\xff" * (length - 1)


# What base64 could say, but no sealing makes.
IMPOSSIBLE_CONTENT = {
    "a length between two that padding makes": b64encode(sealed_bytes(99 + 16)).decode(),
    "a byte too few, and a filled-up text": b64encode(sealed_bytes(98)).decode(),
    "a byte too few in a longer one": b64encode(sealed_bytes(130)).decode(),
    "a byte too many": b64encode(sealed_bytes(132)).decode(),
    "one more step of padding than there is": b64encode(sealed_bytes(67 + 36_864 + 2048)).decode(),
    "version 1": b64encode(sealed_bytes(99, first=1)).decode(),
    "version 3": b64encode(sealed_bytes(99, first=3)).decode(),
    "version 0": b64encode(sealed_bytes(99, first=0)).decode(),
    "spare bits that are not zero, four of them": b64encode(sealed_bytes(67 + 96)).decode()[:-3] + "x==",
    "spare bits that are not zero, two of them": b64encode(sealed_bytes(67 + 64)).decode()[:-2] + "9=",
    "three fill characters": b64encode(sealed_bytes(67 + 96)).decode()[:-3] + "===",
    "four fill characters": b64encode(sealed_bytes(99)).decode()[:-4] + "====",
    "as many fill characters as a step of padding": b64encode(sealed_bytes(67 + 64)).decode()[:-33] + "=" * 33,
    "a fill character before the end": b64encode(sealed_bytes(99)).decode()[:-2] + "=A",
    "characters of another base64": b64encode(sealed_bytes(99)).decode().replace("/", "_"),
    "a character that is not ASCII": b64encode(sealed_bytes(99)).decode()[:-1] + "é",
    "a lone surrogate": b64encode(sealed_bytes(99)).decode()[:-1] + "\ud800",
    "a space": b64encode(sealed_bytes(99)).decode()[:-1] + " ",
}


@pytest.mark.parametrize("content", IMPOSSIBLE_CONTENT.values(), ids=IMPOSSIBLE_CONTENT)
def test_what_no_sealing_could_make_is_refused(content: str) -> None:
    assert 132 <= len(content) <= envelopes.SEALED_CHARACTERS_MAX
    with pytest.raises(Refused) as refused:
        from_event(event_with(DIRECT_TAGS, content))
    assert (refused.value.refusal, refused.value.detail) == (Refusal.MALFORMED, NOT_SEALED)


@pytest.mark.parametrize("length", [1, 32, 33, 64, 65, 96, 97, 255, 256, 257, 1000, 1024, 1025, 40_000, 40_960])
@pytest.mark.parametrize("nonce", [bytes(32), b"\xff" * 32])  # the second character of the content runs from g to v
def test_whatever_sealing_makes_is_taken(length: int, nonce: bytes) -> None:
    content = seal(TOPIC_KEY, b"x" * length, nonce)
    assert from_event(event_with(DIRECT_TAGS, content)) == DIRECT


@pytest.mark.parametrize(("content", "refusal", "detail"), BAD_CONTENT)
def test_content_that_cannot_be_sealed_is_refused(content: str, refusal: Refusal, detail: str) -> None:
    with pytest.raises(Refused) as read:
        from_event(event_with(DIRECT_TAGS, content))
    with pytest.raises(Refused) as written:
        sign_message(ALICE, AT_S, DIRECT, content, AUX)
    assert (read.value.refusal, read.value.detail) == (refusal, detail)
    assert (written.value.refusal, written.value.detail) == (refusal, detail)


def test_an_event_of_another_kind_is_not_a_message() -> None:
    with pytest.raises(Refused, match="kind_unsupported: event is of kind 4202, not 4201"):
        from_event(event_with(DIRECT_TAGS, kind=4202))


def test_one_mention_more_than_allowed_is_too_large() -> None:
    mentions = tuple(f"m{number}" for number in range(65))
    with pytest.raises(Refused, match="too_large: 65 mentions, at most 64 allowed"):
        msgspec.structs.replace(DIRECT, mentions=mentions)
    with pytest.raises(Refused, match="too_large: 65 mentions, at most 64 allowed"):
        from_event(event_with([*DIRECT_TAGS, *(("mention", member) for member in mentions)]))
    assert len(msgspec.structs.replace(DIRECT, mentions=mentions[:64]).mentions) == 64


IMPOSSIBLE: list[tuple[Callable[[], object], str]] = [
    (lambda: msgspec.structs.replace(HEAD, epoch=bytes(15)), "epoch has 15 bytes, it must have 16"),
    (lambda: msgspec.structs.replace(HEAD, sequence=-1), "sequence -1 is under 0"),
    (lambda: msgspec.structs.replace(DIRECT, recipient_key=None), "a message to a dm needs recipient_key"),
    (lambda: Destination(DestinationKind.DM, ""), "destination_ref is empty"),
]


WRONG_TYPES: list[tuple[Callable[[], object], str]] = [
    (lambda: msgspec.structs.replace(HEAD, sequence=1.5), "sequence is of type float, not int"),
    (lambda: msgspec.structs.replace(HEAD, sequence=True), "sequence is of type bool, not int"),
    (lambda: msgspec.structs.replace(HEAD, sequence="7"), "sequence is of type str, not int"),
    (lambda: msgspec.structs.replace(HEAD, sequence=None), "sequence is of type NoneType, not int"),
    (lambda: msgspec.structs.replace(HEAD, epoch="0" * 16), "epoch is of type str, not bytes"),
    (lambda: msgspec.structs.replace(HEAD, mesh=b"home"), "mesh is of type bytes, not str"),
    (lambda: msgspec.structs.replace(HEAD, client_message_id=7), "client_message_id is of type int, not str"),
    (lambda: Destination("dm", "bob"), "destination_kind is of type str, not DestinationKind"),  # type: ignore[arg-type] # the point
    (lambda: Destination(DestinationKind.DM, 7), "destination_ref is of type int, not str"),  # type: ignore[arg-type] # likewise
    (lambda: msgspec.structs.replace(DIRECT, head=None), "head is of type NoneType, not Head"),
    (lambda: msgspec.structs.replace(DIRECT, destination="bob"), "destination is of type str, not Destination"),
    (lambda: msgspec.structs.replace(DIRECT, priority="now"), "priority is of type str, not Priority"),
    (lambda: msgspec.structs.replace(DIRECT, mentions="bob"), "mentions is of type str, not tuple"),
    (lambda: msgspec.structs.replace(DIRECT, mentions=(7,)), "mention is of type int, not str"),
    (lambda: msgspec.structs.replace(DIRECT, expires_at=1e15), "expires_at is of type float, not int"),
    (lambda: msgspec.structs.replace(DIRECT, reply_to=b"x"), "reply_to is of type bytes, not str"),
    (lambda: msgspec.structs.replace(DIRECT, recipient_key=bytes(32)), "recipient_key is of type bytes, not str"),
    (lambda: msgspec.structs.replace(FULL, key_epoch=1.0), "key_epoch is of type float, not int"),
]


@pytest.mark.parametrize(("make", "detail"), WRONG_TYPES)
def test_values_of_other_types_are_refused(make: Callable[[], object], detail: str) -> None:
    with pytest.raises(Refused) as refused:
        make()
    assert (refused.value.refusal, refused.value.detail) == (Refusal.MALFORMED, detail)


@pytest.mark.parametrize(("make", "detail"), IMPOSSIBLE)
def test_an_envelope_that_could_not_be_read_cannot_be_made(make: Callable[[], object], detail: str) -> None:
    with pytest.raises(Refused, match=detail):
        make()
