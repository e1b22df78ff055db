"""Administration: every action in one spelling, counters that only grow, keys that agree before they are named."""

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import action as actions
from holdfast.protocol import administration
from holdfast.protocol import event as events
from holdfast.protocol.action import (
    Action,
    AddMember,
    AdmitAuthor,
    AdvanceTopicKey,
    Block,
    CreateMesh,
    CreateTopic,
    DismissAuthor,
    Grant,
    GrantTopicKey,
    Invite,
    Join,
    RegisterConsumer,
    RemoveConsumer,
    RenameMember,
    RevokeMember,
    Role,
    RotateMemberKey,
    SetRole,
    Subscribe,
    Unblock,
    Unsubscribe,
    WithdrawInvite,
    read_action,
    write_action,
)
from holdfast.protocol.administration import (
    Administration,
    accept_counter,
    admit_author,
    check_agreement,
    check_countersignature,
    check_vouched,
    from_event,
    join,
    next_counter,
    rotate_member_key,
    sign_administration,
    to_tags,
    vouched,
)
from holdfast.protocol.envelope import Head
from holdfast.protocol.event import Event
from holdfast.protocol.keys import public_key, sign
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.sealing import conversation_key, open_sealed, seal
from holdfast.protocol.tags import INTEGER_MAX
from holdfast.protocol.topic_key import key_id

ALICE, BOB, AUTHOR = ((number).to_bytes(32, "big") for number in (1, 2, 3))
SECRET = b"\x05" * 32
AUX = bytes(32)
AT_S = 1_700_000_000
HEAD = Head(mesh="home", client_message_id="01HQX5N5T8J9V0ABCDEFGHJKMN", epoch=bytes(range(16)), sequence=3)
OF_THE_RELAY = (RegisterConsumer, RemoveConsumer)
TOPIC_KEY = bytes(range(32))
KEY_ID = key_id("home", "ops/alerts", 1, TOPIC_KEY)
GRANT = Grant(
    member="bob",
    key=public_key(BOB),
    sealed=seal(conversation_key(ALICE, public_key(BOB)), TOPIC_KEY, b"\x09" * 32),
)

EXAMPLES: list[Action] = [
    CreateMesh(name="Zu Hause", member="alice", member_name="Alice Ångström", key=public_key(ALICE)),
    Invite(key=public_key(SECRET), expires_at=AT_S * 1_000_000, role=Role.MEMBER),
    WithdrawInvite(key=public_key(SECRET)),
    join(SECRET, "home", "bob", "Bob", public_key(BOB), AUX),
    AddMember(member="bob", name="Bob", key=public_key(BOB), role=Role.ADMIN),
    RenameMember(member="bob", name="Robert 🐻"),
    RevokeMember(member="bob"),
    SetRole(member="bob", role=Role.ADMIN),
    rotate_member_key(BOB, "home", "alice", AUX),
    CreateTopic(topic="ops/alerts"),
    Subscribe(topic="ops/alerts"),
    Unsubscribe(topic="ops/alerts"),
    GrantTopicKey(topic="ops/alerts", key_epoch=1, key_id=KEY_ID, grants=(GRANT,)),
    AdvanceTopicKey(topic="ops/alerts", key_epoch=0, key_id=KEY_ID),
    Block(member="bob"),
    Unblock(member="bob"),
    admit_author(AUTHOR, "home", "alice", AUX),
    DismissAuthor(author=public_key(AUTHOR)),
    RegisterConsumer(consumer="lake", log_id="0f" * 16, seq=0),
    RemoveConsumer(consumer="lake"),
]


def asked(action: Action, counter: int = 1_700_000_000_000) -> Administration:
    mesh = "relay" if isinstance(action, OF_THE_RELAY) else "home"
    return Administration(head=msgspec.structs.replace(HEAD, mesh=mesh), counter=counter, action=action)


def event_with(tags: Sequence[Sequence[str]], content: str, kind: int = 4204) -> Event:
    return Event("0" * 64, "0" * 64, AT_S, kind, tuple(tuple(tag) for tag in tags), content, "0" * 128)


def test_there_is_an_example_of_every_action() -> None:
    assert [type(action) for action in EXAMPLES] == list(get_args(Action))


identifiers = st.text("AZaz09._-", min_size=1, max_size=64).filter(lambda text: text[0].isalnum())
UNSEEN = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
VARIANTS = {0x180B, 0x180C, 0x180D, 0x180F, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
names = (
    st.text(
        st.characters(exclude_categories=["Cc", "Cf", "Cn", "Cs", "Zl", "Zp"], exclude_characters=UNSEEN),
        min_size=1,
        max_size=64,
    )
    .map(str.strip)
    .filter(lambda text: any(ord(character) not in VARIANTS and not character.isspace() for character in text))
)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
key_ids = st.binary(min_size=16, max_size=16).map(bytes.hex)
points = st.integers(1, 2**255).map(lambda number: public_key(number.to_bytes(32, "big")))
whole = st.integers(0, INTEGER_MAX)
positive = st.integers(1, INTEGER_MAX)
sealed_keys = st.text("abcXYZ019+/", min_size=130, max_size=130).map("Ag".__add__)
grants = st.builds(Grant, member=identifiers, key=points, sealed=sealed_keys)
signatures = st.binary(min_size=64, max_size=64).map(bytes.hex)
roles = st.sampled_from(Role)
action_values: st.SearchStrategy[Action] = st.one_of(
    st.builds(CreateMesh, name=names, member=identifiers, member_name=names, key=points),
    st.builds(
        CreateMesh,
        name=names,
        member=identifiers,
        member_name=names,
        key=points,
        operator=digests,
        countersignature=signatures,
    ),
    st.builds(Invite, key=digests, expires_at=positive, role=roles),
    st.builds(Join, invite=digests, agreement=signatures, member=identifiers, name=names),
    st.builds(AddMember, member=identifiers, name=names, key=points, role=roles),
    st.builds(RenameMember, member=identifiers, name=names),
    st.builds(SetRole, member=identifiers, role=roles),
    st.builds(RotateMemberKey, member=identifiers, key=digests, countersignature=signatures),
    st.builds(
        GrantTopicKey,
        topic=identifiers,
        key_epoch=positive,
        key_id=key_ids,
        grants=st.lists(grants, min_size=1, max_size=3, unique_by=lambda grant: grant.member).map(tuple),
    ),
    st.builds(AdvanceTopicKey, topic=identifiers, key_epoch=whole, key_id=key_ids),
    st.builds(
        RegisterConsumer,
        consumer=identifiers,
        log_id=st.binary(min_size=16, max_size=16).map(bytes.hex),
        seq=whole,
    ),
    st.sampled_from(EXAMPLES),
)


@given(action_values, positive)
def test_an_action_survives_its_event(action: Action, counter: int) -> None:
    event = events.decode(events.encode(sign_administration(ALICE, AT_S, asked(action, counter), AUX)))
    events.verify(event)
    assert from_event(event) == asked(action, counter)
    assert to_tags(from_event(event)) == event.tags


def test_the_golden_actions_have_not_changed(golden: Callable[[str, object], None]) -> None:
    signed = {
        actions.name(action): sign_administration(ALICE, AT_S, asked(action, 1_700_000_000_000 + place), AUX)
        for place, action in enumerate(EXAMPLES)
    }
    golden("administration.json", {name: events.encode(event).decode() for name, event in signed.items()})
    stored = json.loads((Path(__file__).parent / "golden" / "administration.json").read_text())
    read = [from_event(events.decode(text)) for text in stored.values()]
    for text in stored.values():
        events.verify(events.decode(text))
    assert [administration.action for administration in read] == EXAMPLES
    assert [administration.counter for administration in read] == [1_700_000_000_000 + n for n in range(len(read))]


@pytest.mark.parametrize("action", EXAMPLES, ids=actions.name)
def test_an_action_takes_its_own_fields_and_no_others(action: Action) -> None:
    fields = json.loads(write_action(action))
    assert fields["action"] == actions.name(action)
    for name in fields:
        without = {other: value for other, value in fields.items() if other != name}
        with pytest.raises(Refused, match=f"malformed: action: Object missing required field `{name}`"):
            read_action(json.dumps(without))
    with pytest.raises(Refused, match="malformed: action: Object contains unknown field `zzz`"):
        read_action(json.dumps(fields | {"zzz": 1}))


@pytest.mark.parametrize("action", EXAMPLES, ids=actions.name)
def test_an_action_has_one_spelling(action: Action) -> None:
    content = write_action(action)
    fields = json.loads(content)
    backwards = dict(reversed(fields.items()))
    twice = content[:-1] + f',"{next(reversed(fields))}":' + json.dumps(fields[next(reversed(fields))]) + "}"
    for other in (
        json.dumps(fields),
        json.dumps(backwards, separators=(",", ":"), ensure_ascii=False),
        content + "\n",
        " " + content,
        twice,
        content.replace("a", "\\u0061", 1),
    ):
        assert other != content
        with pytest.raises(Refused, match=r"malformed: action: .* is not in canonical form"):
            read_action(other)


@pytest.mark.parametrize("action", EXAMPLES, ids=actions.name)
def test_only_consumers_belong_to_the_relay_as_a_whole(action: Action) -> None:
    for mesh in ("home", "relay"):
        head = msgspec.structs.replace(HEAD, mesh=mesh)
        if (mesh == "relay") == isinstance(action, OF_THE_RELAY):
            assert Administration(head=head, counter=1, action=action).head.mesh == mesh
        else:
            with pytest.raises(Refused, match=f"{actions.name(action)} (belongs to|may not name) the mesh 'relay'"):
                Administration(head=head, counter=1, action=action)


def test_the_largest_grant_fits_into_an_event() -> None:
    members = tuple(f"{number:02}" + "x" * 62 for number in range(actions.GRANTS_MAX))
    action = GrantTopicKey(
        topic="t" * 64,
        key_epoch=INTEGER_MAX,
        key_id="f" * 32,
        grants=tuple(msgspec.structs.replace(GRANT, member=member) for member in members),
    )
    head = Head(mesh="m" * 64, client_message_id="~" * 128, epoch=b"\xff" * 16, sequence=INTEGER_MAX)
    largest = Administration(head=head, counter=INTEGER_MAX, action=action)
    event = sign_administration(ALICE, events.CREATED_AT_MAX_S, largest, AUX)
    assert len(action.grants) == 64
    assert from_event(event) == largest


def test_a_member_opens_the_topic_key_it_was_granted() -> None:
    event = sign_administration(
        ALICE, AT_S, asked(GrantTopicKey(topic="t", key_epoch=2, key_id=KEY_ID, grants=(GRANT,))), AUX
    )
    granted = from_event(event).action
    assert isinstance(granted, GrantTopicKey)
    assert open_sealed(conversation_key(BOB, event.pubkey), granted.grants[0].sealed) == TOPIC_KEY


def json_of(action: Action, **changes: object) -> str:
    """The action's canonical JSON with other values in some of its fields."""
    fields = json.loads(write_action(action)) | changes
    return json.dumps(dict(sorted(fields.items())), separators=(",", ":"), ensure_ascii=False)


CREATE, INVITE, ADD, TOPIC, GRANTS = EXAMPLES[0], EXAMPLES[1], EXAMPLES[4], EXAMPLES[9], EXAMPLES[12]
ADVANCE, ADMIT, CONSUMER = EXAMPLES[13], EXAMPLES[16], EXAMPLES[18]
ONE_GRANT = {"member": "bob", "key": GRANT.key, "sealed": GRANT.sealed}
BAD_CONTENT = [
    ("", "action: Input data was truncated"),
    ("null", "action: Expected `object`, got `null`"),
    ("[]", "action: Expected `object`, got `array`"),
    ("{}", "action: Object missing required field `action`"),
    ('{"action":"burn"}', "action: Invalid value 'burn' - at `$.action`"),
    ('{"action":1}', "action: Expected `str` - at `$.action`"),
    ('{"action":"block","member":"bob"', "action: Input data was truncated"),
    ('{"action":"block","member":"bob"}}', "action: JSON is malformed: trailing characters (byte 34)"),
    ('{"a":' + "[" * 30_000, "action: maximum recursion depth exceeded while deserializing an object"),
    (
        '{"action":"block","member":"\\ud800\\u0041"}',
        "action: JSON is malformed: invalid utf-16 surrogate pair (byte 40)",
    ),
    (
        '"\ud800"',
        r"action: 'utf-8' codec can't encode character '\ud800' in position 1: surrogates not allowed",
    ),
    (json_of(CREATE, member="a b"), "action: Expected `str` matching regex * - at `$.member`"),
    (json_of(CREATE, member="x" * 65), "action: Expected `str` matching regex * - at `$.member`"),
    *(
        (
            json_of(CREATE, name=name),
            "action: Expected `str` of 1 to 64 visible characters on one line, without spaces around them - at `$.name`",
        )
        for name in ("", "x" * 65, " x", "x\u00a0", "x\ny", "x\u2028y", "x\u202ey", "\u200d")
    ),
    (json_of(CREATE, name=7), "action: Expected `str`, got `int` - at `$.name`"),
    (json_of(CREATE, key="f" * 64), f"action: key '{'f' * 40}...' is not a point of the curve"),
    (json_of(ADD, key="0" * 64), f"action: key '{'0' * 40}...' is not a point of the curve"),
    (json_of(ADD, key=public_key(BOB).upper()), "action: Expected `str` matching regex * - at `$.key`"),
    (json_of(ADD, role="owner"), "action: Invalid enum value 'owner' - at `$.role`"),
    (json_of(INVITE, key="00"), "action: Expected `str` matching regex * - at `$.key`"),
    (json_of(INVITE, expires_at=0), "action: Expected `int` >= 1 - at `$.expires_at`"),
    (json_of(INVITE, expires_at=-1), "action: Expected `int` >= 1 - at `$.expires_at`"),
    (json_of(INVITE, expires_at=2**53), "action: Expected `int` <= 9007199254740991 - at `$.expires_at`"),
    (json_of(INVITE, expires_at=1.5), "action: Expected `int`, got `float` - at `$.expires_at`"),
    (json_of(INVITE, expires_at="1"), "action: Expected `int`, got `str` - at `$.expires_at`"),
    (json_of(INVITE, expires_at=None), "action: Expected `int`, got `null` - at `$.expires_at`"),
    (
        json_of(INVITE).replace("1700000000000000", "1700000000000000.0"),
        "action: Expected `int`, got `float` - at `$.expires_at`",
    ),
    (json_of(TOPIC, topic="a b"), "action: Expected `str` matching regex * - at `$.topic`"),
    (json_of(TOPIC, topic="x" * 65), "action: Expected `str` matching regex * - at `$.topic`"),
    (json_of(TOPIC, topic="x\n"), "action: Expected `str` matching regex * - at `$.topic`"),
    (json_of(GRANTS, key_epoch=0), "action: Expected `int` >= 1 - at `$.key_epoch`"),
    (json_of(GRANTS, grants=[]), "action: Expected `array` of length >= 1 - at `$.grants`"),
    (json_of(GRANTS, grants=[ONE_GRANT] * 65), "action: Expected `array` of length <= 64 - at `$.grants`"),
    (json_of(GRANTS, grants=[ONE_GRANT] * 2), "grants: member 'bob' stands twice"),
    (
        json_of(GRANTS, grants=[ONE_GRANT | {"x": 1}]),
        "action: Object contains unknown field `x` - at `$.grants[0]`",
    ),
    (
        json_of(GRANTS, grants=[ONE_GRANT | {"sealed": "A" * 132}]),
        "action: Expected `str` matching regex * - at `$.grants[0].sealed`",
    ),
    (
        json_of(GRANTS, grants=[ONE_GRANT | {"sealed": GRANT.sealed + "AAAA"}]),
        "action: Expected `str` matching regex * - at `$.grants[0].sealed`",
    ),
    *(
        (
            json_of(GRANTS, grants=[ONE_GRANT | {"sealed": start + GRANT.sealed[2:]}]),
            "action: Expected `str` matching regex * - at `$.grants[0].sealed`",
        )
        for start in ("Af", "Aw", "AG", "A0", "Bg")  # of versions 1, 3, 0, 3 and 6
    ),
    (json_of(ADVANCE, key_epoch=-1), "action: Expected `int` >= 0 - at `$.key_epoch`"),
    (
        json_of(ADMIT, countersignature="0" * 126),
        r"action: Expected `str` matching regex '\\A[0-9a-f]{128}\\Z' - at `$.countersignature`",
    ),
    (json_of(CONSUMER, log_id="0" * 30), "action: Expected `str` matching regex * - at `$.log_id`"),
    (json_of(CONSUMER, seq=-1), "action: Expected `int` >= 0 - at `$.seq`"),
]


@pytest.mark.parametrize(("content", "detail"), BAD_CONTENT)
def test_malformed_actions_are_refused_with_the_reason(content: str, detail: str) -> None:
    with pytest.raises(Refused) as refused:
        from_event(event_with(to_tags(asked(EXAMPLES[0])), content))
    assert refused.value.refusal is Refusal.MALFORMED
    start, _, end = detail.partition("*")  # where a regular expression is quoted
    assert refused.value.detail == detail or (end and refused.value.detail.startswith(start))
    assert refused.value.detail.endswith(end)
    assert len(refused.value.detail) <= 200


def takes_name(name: str) -> bool:
    """Whether all who are named by people may be called so, or none of them."""
    fields: list[tuple[Action, str]] = [
        (CREATE, "name"),
        (CREATE, "member_name"),
        (EXAMPLES[3], "name"),
        (ADD, "name"),
        (EXAMPLES[5], "name"),
    ]
    taken = set()
    for action, field in fields:
        try:
            write_action(msgspec.structs.replace(action, **{field: name}))
            taken.add(True)
        except Refused:
            taken.add(False)
    assert len(taken) == 1
    return taken.pop()


ODD_NAMES = [
    "Bob",
    "Zoë Ångström",
    "山田 太郎",
    "محمد",
    "אבי",
    "नमस्ते",
    "a\u0301",  # a mark on the letter before it
    "\u0645\u06cc\u200c\u0631\u0648\u0645",  # Persian: a word in two parts
    "क्\u200dष",
    "👩\u200d💻",
    "👩\u200d❤\ufe0f\u200d👩",
    "❤\ufe0f",
    "x\ufe0f\ufe0f",
    "\ufe0fx",
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_people_are_called_what_they_are_called(name: str) -> None:
    assert takes_name(name)


UNSEEN_NAMES = [
    "\u200d",
    "\u200c",
    "\ufe0f",
    "\ufe0f\U000e0100",
    "\u3164",  # a filler that counts as a letter
    "\u2800",  # braille without dots
    "\u200bBob",
    "Bo\u200bb",
    "\u200dBob",
    "Bob\u200d",
    "Bo\u200d\u200db",
    "Bo\u200c\u200db",
    "Bob \u200dx",
    "Bob\u200d x",
    "Bob\u202egnp.exe",
    "\u2066Bob\u2069",
    "\u200fBob",
    "Bob\u00ad",
    "Bob\ufeff",
    "Bo\U000e0062b",  # a tag
    "Bo\u3164b",
    "Bo\u034fb",
]


@pytest.mark.parametrize("name", UNSEEN_NAMES, ids=ascii)
def test_a_name_shows_what_it_is(name: str) -> None:
    assert not takes_name(name)


def test_no_character_of_format_stands_in_a_name_but_for_the_joiners() -> None:
    pattern = re.compile(actions.NAME_PATTERN)
    formats = {chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == "Cf"}
    assert len(formats) > 160
    assert {character for character in formats if pattern.search(f"a{character}b")} == {"\u200c", "\u200d"}


def test_the_length_of_a_name_is_counted_with_its_joiners() -> None:
    assert takes_name("x\u200d" * 31 + "xx")
    assert not takes_name("x\u200d" * 32 + "x")


def test_a_long_name_that_does_not_fit_is_refused_at_once() -> None:
    """A pattern that went back over it again and again would still be at it when the test's time is up."""
    for name in ("x\u200d" * 500_000, "\ufe0f" * 1_000_000, "x" * 1_000_000 + " ", "\u200d" * 1_000_000):
        assert not takes_name(name)


def test_a_refusal_does_not_carry_a_strangers_text_at_length() -> None:
    with pytest.raises(Refused) as refused:
        read_action('{"action":"block","member":"bob","' + "x" * 50_000 + '":1}')
    assert len(refused.value.detail) == 200


def test_a_refusal_stays_on_one_line() -> None:
    with pytest.raises(Refused) as refused:
        read_action('{"action":"block","member":"bob","x\\ny\u00e9\\u0007":1}')
    assert refused.value.detail == r"action: Object contains unknown field `x\ny\xe9\x07`"


TAGS = to_tags(asked(EXAMPLES[0]))
BAD_TAGS = [
    ([], "tag 'mesh' is missing"),
    (TAGS[:-1], "tag 'counter' is missing"),
    ([*TAGS, TAGS[-1]], "tag 'counter' stands 2 times, at most 1 allowed"),
    ([TAGS[-1], *TAGS[:-1]], "tag 'mesh' stands after 'counter'"),
    ([*TAGS, ("destination_kind", "dm")], "unknown tag 'destination_kind'"),
    ([*TAGS[:-1], ("counter", "0")], "counter 0 is under 1"),
    ([*TAGS[:-1], ("counter", "-1")], "counter '-1' is not plain base-10 digits"),
    ([*TAGS[:-1], ("counter", "01")], "counter '01' has a leading zero"),
    ([*TAGS[:-1], ("counter", str(2**53))], "counter 9007199254740992 is over 9007199254740991"),
    ([*TAGS[:-1], ("counter", "1", "2")], "tag 'counter' has 3 elements, it must have 2"),
    ([("mesh", "relay"), *TAGS[1:]], "create_mesh may not name the mesh 'relay'"),
]


@pytest.mark.parametrize(("tags", "detail"), BAD_TAGS)
def test_malformed_tags_are_refused_with_the_reason(tags: Sequence[Sequence[str]], detail: str) -> None:
    with pytest.raises(Refused) as refused:
        from_event(event_with(tags, write_action(EXAMPLES[0])))
    assert (refused.value.refusal, refused.value.detail) == (Refusal.MALFORMED, detail)


def test_an_event_of_another_kind_is_not_administration() -> None:
    with pytest.raises(Refused, match="kind_unsupported: event is of kind 4203, not 4204"):
        from_event(event_with(TAGS, write_action(EXAMPLES[0]), kind=4203))


UNWRITABLE: list[Action] = [
    Block(member="a b"),
    RenameMember(member="bob", name="\ud800"),
    Invite(key="00", expires_at=1, role=Role.MEMBER),
    AdvanceTopicKey(topic="t", key_epoch=2**53, key_id=KEY_ID),
]


@pytest.mark.parametrize("action", UNWRITABLE, ids=actions.name)
def test_an_action_that_could_not_be_read_is_never_signed(action: Action) -> None:
    with pytest.raises(Refused, match="malformed: action: "):
        sign_administration(ALICE, AT_S, asked(action), AUX)


@pytest.mark.parametrize(
    ("last", "at", "expected"),
    [
        (None, 1_700_000_000_000_000, 1_700_000_000_000),
        (None, 999, 1),
        (None, 0, 1),
        (0, 0, 1),
        (1_699_999_999_999, 1_700_000_000_000_999, 1_700_000_000_000),
        (1_700_000_000_000, 1_700_000_000_000_999, 1_700_000_000_001),
        (1_800_000_000_000, 1_700_000_000_000_000, 1_800_000_000_001),
    ],
)
def test_the_next_counter_follows_the_clock_but_never_back(last: int | None, at: int, expected: int) -> None:
    assert next_counter(last, at) == expected


@given(st.none() | whole, st.lists(st.integers(0, 2**52), min_size=1, max_size=20))
def test_whatever_the_clock_does_counters_are_accepted_once_and_in_order(last: int | None, times: list[int]) -> None:
    used: list[int] = []
    for at in times:
        counter = next_counter(last, at)
        accept_counter(last, counter)
        last = counter
        used.append(counter)
    for counter in used:
        with pytest.raises(Refused, match="counter_not_increasing"):
            accept_counter(last, counter)


def test_a_counter_that_does_not_grow_is_refused() -> None:
    accept_counter(None, 1)
    accept_counter(7, 8)
    for given_counter in (7, 6, 1):
        with pytest.raises(Refused) as refused:
            accept_counter(7, given_counter)
        assert refused.value.refusal is Refusal.COUNTER_NOT_INCREASING
        assert refused.value.detail == f"counter {given_counter} does not follow 7"


def test_a_join_that_the_invitation_was_signed_for_is_taken_and_shows_no_secret() -> None:
    action = join(SECRET, "home", "bob", "Bob", public_key(BOB), AUX)
    check_agreement("home", action, public_key(BOB))
    assert SECRET.hex() not in actions.write_action(action)


@pytest.mark.parametrize(
    ("mesh", "changed", "signer"),
    [
        ("work", {}, BOB),
        ("home", {"member": "mallory"}, BOB),
        ("home", {}, ALICE),
        ("home", {"invite": public_key(ALICE)}, BOB),
        ("home", {"agreement": "0" * 128}, BOB),
    ],
)
def test_an_invitation_signed_for_somebody_else_is_of_no_use(mesh: str, changed: dict[str, str], signer: bytes) -> None:
    action = msgspec.structs.replace(join(SECRET, "home", "bob", "Bob", public_key(BOB), AUX), **changed)
    with pytest.raises(Refused) as refused:
        check_agreement(mesh, action, public_key(signer))
    assert refused.value.refusal is Refusal.INVITE_INVALID


def test_a_key_that_agreed_is_taken() -> None:
    check_countersignature("home", rotate_member_key(BOB, "home", "alice", AUX))
    check_countersignature("home", admit_author(AUTHOR, "home", "alice", AUX))


ROTATE, ADMITTED = rotate_member_key(BOB, "home", "alice", AUX), admit_author(BOB, "home", "alice", AUX)
NOT_AGREED: list[tuple[str, RotateMemberKey | AdmitAuthor]] = [
    ("work", ROTATE),
    ("home", msgspec.structs.replace(ROTATE, member="mallory")),
    ("home", msgspec.structs.replace(ROTATE, key=public_key(ALICE))),
    ("home", msgspec.structs.replace(ROTATE, key="f" * 64)),
    ("home", msgspec.structs.replace(ROTATE, countersignature="0" * 128)),
    ("home", msgspec.structs.replace(ROTATE, countersignature=ADMITTED.countersignature)),
    ("homea", msgspec.structs.replace(ROTATE, member="lice")),
    ("work", ADMITTED),
    ("home", msgspec.structs.replace(ADMITTED, member="mallory")),
    ("home", msgspec.structs.replace(ADMITTED, author=public_key(ALICE))),
    ("home", msgspec.structs.replace(ADMITTED, countersignature=ROTATE.countersignature)),
    ("home", msgspec.structs.replace(ADMITTED, countersignature=sign(ALICE, bytes(32), AUX).hex())),
]


@pytest.mark.parametrize(("mesh", "action"), NOT_AGREED)
def test_an_agreement_holds_for_its_mesh_member_key_and_purpose_alone(
    mesh: str, action: RotateMemberKey | AdmitAuthor
) -> None:
    with pytest.raises(Refused) as refused:
        check_countersignature(mesh, action)
    assert refused.value.refusal is Refusal.COUNTERSIGNATURE_MISSING


VOUCHED = vouched(AUTHOR, "home", CreateMesh(name="x", member="alice", member_name="A", key=public_key(ALICE)), AUX)


def test_an_operator_vouches_for_a_founding_and_none_has_to() -> None:
    check_vouched("home", VOUCHED)
    check_vouched("home", msgspec.structs.replace(VOUCHED, name="another name, which is for people"))
    check_vouched("home", msgspec.structs.replace(VOUCHED, operator=None, countersignature=None))


@pytest.mark.parametrize(
    ("mesh", "changed"),
    [
        ("work", {}),
        ("home", {"member": "mallory"}),
        ("home", {"key": public_key(BOB)}),
        ("home", {"operator": public_key(BOB)}),
        ("home", {"operator": "f" * 64}),
        ("home", {"countersignature": "0" * 128}),
        ("home", {"countersignature": admit_author(AUTHOR, "home", "alice", AUX).countersignature}),
    ],
)
def test_an_operators_word_holds_for_its_mesh_member_and_key_alone(mesh: str, changed: dict[str, str]) -> None:
    with pytest.raises(Refused) as refused:
        check_vouched(mesh, msgspec.structs.replace(VOUCHED, **changed))
    assert refused.value.refusal is Refusal.COUNTERSIGNATURE_MISSING


@pytest.mark.parametrize("name", ["operator", "countersignature"])
def test_an_operator_and_its_word_stand_together(name: str) -> None:
    with pytest.raises(Refused, match="stand together"):
        read_action(json_of(VOUCHED, **{name: None}))


def test_an_operator_who_is_not_there_is_not_spelled_out() -> None:
    with pytest.raises(Refused, match="not in canonical form"):
        read_action(json_of(VOUCHED, operator=None, countersignature=None))


WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"head": None}, "head is of type NoneType, not Head"),
    ({"counter": 1.5}, "counter is of type float, not int"),
    ({"counter": True}, "counter is of type bool, not int"),
    ({"action": "block"}, "action is of type str, not Asked"),
    ({"action": {"action": "block", "member": "bob"}}, "action is of type dict, not Asked"),
]


@pytest.mark.parametrize(("fields", "detail"), WRONG_TYPES)
def test_values_of_other_types_are_refused(fields: dict[str, Any], detail: str) -> None:
    with pytest.raises(Refused) as refused:
        msgspec.structs.replace(asked(EXAMPLES[0]), **fields)
    assert (refused.value.refusal, refused.value.detail) == (Refusal.MALFORMED, detail)


def test_the_kind_and_the_relays_name_are_part_of_the_wire() -> None:
    assert (administration.ADMINISTRATION_KIND, administration.RELAY) == (4204, "relay")
