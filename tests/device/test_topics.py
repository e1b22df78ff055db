"""What a topic needs of its keeper, case by case."""

from collections.abc import Sequence

import pytest

from holdfast.device.topics import Need, need
from holdfast.wire.client import Subscriber, Topic

ME, BOB, EVE = "me", "bob", "eve"

# epoch, created by, subscribers (with their key or not), who left, has this keeper the key → what is needed
CASES: dict[str, tuple[int, str, dict[str, bool], set[str], bool, Need]] = {
    "a new topic of mine": (0, ME, {}, set(), True, Need.ROTATE),
    "a new topic of mine that somebody waits for": (0, ME, {BOB: False}, set(), True, Need.ROTATE),
    "a new topic of another keeper, who is about to make its key": (0, BOB, {}, set(), True, Need.NOTHING),
    "a new topic of another keeper that somebody waits for": (0, BOB, {EVE: False}, set(), False, Need.ROTATE),
    "nobody there": (1, ME, {}, set(), True, Need.NOTHING),
    "all have it": (1, ME, {BOB: True, EVE: True}, set(), True, Need.NOTHING),
    "all have it but I": (1, BOB, {BOB: True, EVE: True}, set(), False, Need.NOTHING),
    "one waits": (1, ME, {BOB: True, EVE: False}, set(), True, Need.GRANT),
    "one waits and I lack the key": (1, BOB, {BOB: True, EVE: False}, set(), False, Need.ROTATE),
    "one left": (1, ME, {BOB: True}, {EVE}, True, Need.ROTATE),
    "one left and one waits": (1, ME, {BOB: False}, {EVE}, True, Need.ROTATE),
    "the last one left": (4, ME, {}, {EVE}, True, Need.ROTATE),
}


def _topic(epoch: int, created_by: str, subscribers: Sequence[tuple[str, bool]], left: set[str]) -> Topic:
    return Topic(
        topic="news",
        key_epoch=epoch,
        created_by=created_by,
        subscribers=tuple(Subscriber(member=member, has_key=has_key) for member, has_key in subscribers),
        left=tuple(left),
    )


@pytest.mark.parametrize("name", CASES)
def test_a_topic_gets_what_it_needs(name: str) -> None:
    epoch, created_by, subscribers, left, has_key, expected = CASES[name]
    topic = _topic(epoch, created_by, list(subscribers.items()), left)
    assert need(topic, ME, has_key=has_key) is expected
