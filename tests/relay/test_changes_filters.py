"""What CHANGES can be asked for: every filter, on the state and on the tail, and every fault with its own words."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from holdfast.protocol.event import Event
from holdfast.protocol.feed_filter import SEQ_MAX, VALUES_MAX
from tests.relay.feed_client import NOTE, Author, Feed, FeedClient, bootstrap, open_feed, shown, tail

AUTHOR, OTHER = Author(), Author("somebody else")
TASK = 49_999

# What the relay has, by position. What is current: 3, 4, 5, 6, 7, 8, 9; dates ascend with positions.
EVENTS: dict[int, Event] = dict(
    enumerate(
        (
            AUTHOR.snapshot("one", {"A": 1}, c="notes", at_s=AUTHOR.now_s - 90),
            AUTHOR.snapshot("one", {"A": 2}, c="notes", at_s=AUTHOR.now_s - 80),
            AUTHOR.snapshot("one", {"A": 3}, c="drafts", at_s=AUTHOR.now_s - 70),
            AUTHOR.snapshot("two", {"A": 1}, c="notes", at_s=AUTHOR.now_s - 60),
            AUTHOR.snapshot("two", {"B": 1}, o="del", c="notes", at_s=AUTHOR.now_s - 50),
            AUTHOR.snapshot("three", {"A": 1}, at_s=AUTHOR.now_s - 40),
            AUTHOR.snapshot("four", {"A": 1}, kind=TASK, at_s=AUTHOR.now_s - 30),
            OTHER.snapshot("one", {"A": 9}, c="notes", at_s=AUTHOR.now_s - 20),
            AUTHOR.snapshot("five", {"A": 1}, o="del", at_s=AUTHOR.now_s - 10),
        ),
        1,
    )
)
HEAD = len(EVENTS)


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[Feed]:
    with open_feed(tmp_path_factory.mktemp("filters") / "relay") as started:
        assert started.put(*EVENTS.values()) == list(EVENTS)
        yield started


@pytest.fixture
def client(feed: Feed) -> Iterator[FeedClient]:
    with feed.client() as connected:
        yield connected


# (filter, what of the history it brings, where it ends)
TAILS: list[tuple[dict[str, Any], list[int], int]] = [
    ({}, [1, 2, 3, 4, 5, 6, 9], 9),
    ({"since": 0}, [1, 2, 3, 4, 5, 6, 9], 9),
    ({"since": 3}, [4, 5, 6, 9], 9),
    ({"since": 8}, [9], 9),
    ({"since": 9}, [], 9),
    ({"until_seq": 3}, [1, 2, 3], 3),
    ({"until_seq": 8}, [1, 2, 3, 4, 5, 6], 8),
    ({"until_seq": 99}, [1, 2, 3, 4, 5, 6, 9], 9),
    ({"until_seq": 0}, [], 0),
    ({"since": 2, "until_seq": 4}, [3, 4], 4),
    ({"since": 4, "until_seq": 2}, [], 4),
    ({"limit": 1}, [1], 1),
    ({"limit": 4}, [1, 2, 3, 4], 4),
    ({"limit": 7}, [1, 2, 3, 4, 5, 6, 9], 9),
    ({"limit": 8}, [1, 2, 3, 4, 5, 6, 9], 9),
    ({"limit": 0}, [], 0),
    ({"since": 3, "limit": 0}, [], 3),
    ({"since": 3, "limit": 2}, [4, 5], 5),
    ({"since": 6, "limit": 1}, [9], 9),
    ({"until_seq": 4, "limit": 2}, [1, 2], 2),
    ({"until_seq": 2, "limit": 5}, [1, 2], 2),
    ({"limit": 1, "#o": ["del"]}, [5], 5),
    ({"limit": 2, "#o": ["del"]}, [5, 9], 9),
    ({"kinds": [TASK]}, [7], 9),
    ({"kinds": [NOTE, TASK]}, [1, 2, 3, 4, 5, 6, 7, 9], 9),
    ({"kinds": [NOTE, NOTE]}, [1, 2, 3, 4, 5, 6, 9], 9),
    ({"kinds": [40_000]}, [], 9),
    ({"authors": [OTHER.key]}, [8], 9),
    ({"authors": [Author("nobody").key]}, [], 9),
    ({"#d": ["one"]}, [1, 2, 3], 9),
    ({"#d": ["one", "three"]}, [1, 2, 3, 6], 9),
    ({"#d": ["one", "one"]}, [1, 2, 3], 9),
    ({"#d": ["absent"]}, [], 9),
    ({"#d": []}, [], 9),
    ({"#o": ["put"]}, [1, 2, 3, 4, 6], 9),
    ({"#o": ["del"]}, [5, 9], 9),
    ({"#o": ["put", "del"]}, [1, 2, 3, 4, 5, 6, 9], 9),
    ({"#o": ["PUT"]}, [], 9),
    ({"#c": ["notes"]}, [1, 2, 4, 5], 9),
    ({"#c": ["notes", "drafts"]}, [1, 2, 3, 4, 5], 9),
    ({"#c": [""]}, [], 9),
    ({"#d": ["two"], "#o": ["del"], "#c": ["notes"]}, [5], 9),
    ({"#d": ["two"], "since": 4}, [5], 9),
    ({"#d": ["one"], "until_seq": 2}, [1, 2], 2),
    ({"#d": ["one"], "limit": 2}, [1, 2], 2),
    ({"live": False}, [1, 2, 3, 4, 5, 6, 9], 9),
]

# The state is decided before filters apply: position 2 does not become current where 3 is not wanted.
STATES: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [3, 4, 5, 6, 9]),
    ({"since": 8}, [3, 4, 5, 6, 9]),
    ({"kinds": [TASK]}, [7]),
    ({"kinds": [NOTE, TASK]}, [3, 4, 5, 6, 7, 9]),
    ({"authors": [OTHER.key]}, [8]),
    ({"#d": ["one"]}, [3]),
    ({"#d": ["two"]}, [4, 5]),
    ({"#d": ["one", "five"]}, [3, 9]),
    ({"#d": []}, []),
    ({"#o": ["put"]}, [3, 4, 6]),
    ({"#o": ["del"]}, [5, 9]),
    ({"#c": ["notes"]}, [4, 5]),
    ({"#c": ["drafts"]}, [3]),
    ({"#d": ["one"], "#c": ["notes"]}, []),
]


@pytest.mark.parametrize(("asked", "found", "covered"), TAILS, ids=lambda value: str(value)[:60])
def test_the_tail_is_what_the_filter_says(
    client: FeedClient, asked: Mapping[str, Any], found: list[int], covered: int
) -> None:
    client.changes(tail(AUTHOR, **asked))
    client.expect_events({seq: EVENTS[seq] for seq in found})
    client.expect_eose(covered)


@pytest.mark.parametrize(("asked", "found"), STATES, ids=lambda value: str(value)[:60])
def test_the_state_is_what_the_filter_says(client: FeedClient, asked: Mapping[str, Any], found: list[int]) -> None:
    client.changes(bootstrap(AUTHOR, **asked))
    client.expect(
        ["CHANGES", "s", "STATUS", {"mode": "bootstrap", "snapshot_seq": HEAD}],
        *(["CHANGES", "s", "SNAPSHOT", shown(EVENTS[seq])] for seq in found),
        ["CHANGES", "s", "EOSE", HEAD],
    )


def without(asked: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if name not in names}


TAIL, STATE = tail(AUTHOR), bootstrap(AUTHOR)
MANY = [f"doc-{number}" for number in range(VALUES_MAX + 1)]

FAULTS: list[tuple[dict[str, Any], str]] = [
    (without(TAIL, "mode"), "invalid: mode_required: filter: no mode"),
    ({**TAIL, "mode": None}, "invalid: mode_required: filter: no mode"),
    ({**TAIL, "mode": "replay"}, "invalid: mode_required: filter: mode 'replay'"),
    ({**TAIL, "mode": "TAIL"}, "invalid: mode_required: filter: mode 'TAIL'"),
    (without(TAIL, "kinds"), "invalid: kinds_required: filter: no kinds"),
    ({**TAIL, "kinds": []}, "invalid: kinds_required: filter: no kinds"),
    ({**TAIL, "kinds": [39_999]}, "invalid: kind_out_of_range: filter: kind 39999"),
    ({**TAIL, "kinds": [NOTE, 50_000]}, "invalid: kind_out_of_range: filter: kind 50000"),
    (without(TAIL, "authors"), "invalid: one_author_required: filter: 0 authors"),
    ({**TAIL, "authors": []}, "invalid: one_author_required: filter: 0 authors"),
    ({**TAIL, "authors": [AUTHOR.key, OTHER.key]}, "invalid: one_author_required: filter: 2 authors"),
    ({**STATE, "authors": [AUTHOR.key, AUTHOR.key]}, "invalid: one_author_required: filter: 2 authors"),
    (
        {**TAIL, "authors": [AUTHOR.key.upper()]},
        f"invalid: malformed: filter: authors has '{AUTHOR.key.upper()[:40]}...', which is not 32 bytes in lower-case hex",
    ),
    (
        {**TAIL, "authors": ["ab"]},
        "invalid: malformed: filter: authors has 'ab', which is not 32 bytes in lower-case hex",
    ),
    ({**STATE, "limit": 10}, "invalid: limit_with_bootstrap: filter: limit with bootstrap"),
    ({**STATE, "limit": 0}, "invalid: limit_with_bootstrap: filter: limit with bootstrap"),
    ({**STATE, "limit": 10, "live": True}, "invalid: limit_with_bootstrap: filter: limit with bootstrap"),
    (
        {**STATE, "until_seq": 5},
        "invalid: malformed: filter: until_seq with bootstrap, which is of the moment it is asked for",
    ),
    ({**TAIL, "limit": 10, "live": True}, "invalid: limit_with_live: filter: limit with live"),
    ({**TAIL, "since": HEAD + 1}, f"invalid: cursor-ahead: since {HEAD + 1} is past the last position {HEAD}"),
    (
        {**TAIL, "since": SEQ_MAX, "live": True},
        f"invalid: cursor-ahead: since {SEQ_MAX} is past the last position {HEAD}",
    ),
    ({**TAIL, "since": -1}, "invalid: malformed: filter: Expected `int` >= 0 - at `$.since`"),
    ({**TAIL, "since": "1"}, "invalid: malformed: filter: Expected `int | null`, got `str` - at `$.since`"),
    ({**TAIL, "since": SEQ_MAX + 1}, f"invalid: malformed: filter: Expected `int` <= {SEQ_MAX} - at `$.since`"),
    ({**TAIL, "until_seq": -1}, "invalid: malformed: filter: Expected `int` >= 0 - at `$.until_seq`"),
    ({**TAIL, "limit": -1}, "invalid: malformed: filter: Expected `int` >= 0 - at `$.limit`"),
    ({**TAIL, "live": "yes"}, "invalid: malformed: filter: Expected `bool`, got `str` - at `$.live`"),
    ({**TAIL, "kinds": NOTE}, "invalid: malformed: filter: Expected `array | null`, got `int` - at `$.kinds`"),
    ({**TAIL, "kinds": ["42061"]}, "invalid: malformed: filter: Expected `int`, got `str` - at `$.kinds[0]`"),
    ({**TAIL, "kinds": [65_536]}, "invalid: malformed: filter: Expected `int` <= 65535 - at `$.kinds[0]`"),
    ({**TAIL, "#d": "one"}, "invalid: malformed: filter: Expected `array | null`, got `str` - at `$.#d`"),
    ({**TAIL, "#d": MANY}, f"invalid: malformed: filter: Expected `array` of length <= {VALUES_MAX} - at `$.#d`"),
    ({**TAIL, "#e": ["x"]}, "invalid: malformed: filter: Object contains unknown field `#e`"),
    ({**TAIL, "until": 5}, "invalid: malformed: filter: Object contains unknown field `until`"),
    ({**TAIL, "search": "x"}, "invalid: malformed: filter: Object contains unknown field `search`"),
]


@pytest.mark.parametrize(("asked", "text"), FAULTS, ids=lambda value: str(value)[:60])
def test_each_fault_has_its_own_words(feed: Feed, client: FeedClient, asked: dict[str, Any], text: str) -> None:
    assert client.refusal(asked) == text
    client.changes(tail(AUTHOR, since=HEAD))  # the connection is as good as before
    client.expect_eose(HEAD)


@pytest.mark.parametrize("asked", [None, [], "tail", 5, True], ids=str)
def test_a_filter_that_is_no_object_is_refused(client: FeedClient, asked: Any) -> None:
    assert client.refusal(asked).startswith("invalid: malformed: filter: Expected `object`, got ")


@pytest.mark.parametrize(
    "frame",
    [
        '["CHANGES"]',
        '["CHANGES", "s"]',
        '["CHANGES", "", {"mode": "tail"}]',
        f'["CHANGES", "{"x" * 65}", {{"mode": "tail"}}]',
        '["CHANGES", 5, {"mode": "tail"}]',
        '["CHANGES", "s", {"mode": "tail"}, {}]',
    ],
)
def test_what_is_no_frame_of_ours_gets_a_notice(client: FeedClient, frame: str) -> None:
    client.socket.send(frame)
    verb, text = client.hear()
    assert verb == "NOTICE"
    assert text.startswith("invalid: malformed: message: ")


def test_a_subscription_id_may_have_64_characters_of_any_kind(client: FeedClient) -> None:
    for sub in ("x" * 64, "ü" * 64, '"\\\u2028', " "):
        client.changes(tail(AUTHOR, since=HEAD), sub)
        client.expect_eose(HEAD, sub)
