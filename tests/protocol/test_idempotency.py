"""The eleven answers of the daemon and the answers of the relay to an id that was seen before."""

import itertools

import pytest

from holdfast.protocol.idempotency import ANSWERS, DUPLICATES, Earlier, Fingerprint, compared, earlier
from holdfast.protocol.outbox import Status
from holdfast.protocol.refusal import Refusal

ELEVEN = {
    # existing row, fingerprint: HTTP status, status, conflict, what else is carried, row inserted
    (None, "not_compared"): (202, "queued", None, set(), True),
    ("pending", "matches"): (202, "queued", None, set(), False),
    ("pending", "mismatches"): (409, None, "outbox_pending_fingerprint_mismatch", set(), False),
    ("inflight", "matches"): (202, "inflight", None, set(), False),
    ("inflight", "mismatches"): (409, None, "outbox_inflight_fingerprint_mismatch", set(), False),
    ("done", "matches"): (200, None, None, {"duplicate", "broker_message_id", "history_id"}, False),
    ("done", "mismatches"): (409, None, "outbox_done_fingerprint_mismatch", {"broker_message_id"}, False),
    ("dead", "matches"): (409, None, "outbox_dead_fingerprint_match", {"reason"}, False),
    ("dead", "mismatches"): (409, None, "outbox_dead_fingerprint_mismatch", set(), False),
    ("aborted", "matches"): (409, None, "outbox_aborted_fingerprint_match", set(), False),
    ("aborted", "mismatches"): (409, None, "outbox_aborted_fingerprint_mismatch", set(), False),
}


def test_there_are_eleven_answers() -> None:
    assert len(ANSWERS) == len(ELEVEN) == 11


@pytest.mark.parametrize(("existing", "match"), list(itertools.product((None, *Status), Fingerprint)))
def test_every_state_of_a_row_has_one_answer_for_each_fingerprint(existing: Status | None, match: Fingerprint) -> None:
    answer = ANSWERS.get((existing, match))
    decided = ELEVEN.get((existing and existing.value, match.value))
    if decided is None:
        assert answer is None
        return
    http_status, status, conflict, carries, inserts = decided
    prefix = {"daemon_fingerprint_prefix"} if http_status == 409 else set()
    assert answer is not None
    assert (answer.http_status, answer.status, answer.conflict, answer.inserts) == (
        http_status,
        status,
        conflict,
        inserts,
    )
    assert set(answer.carries) == carries | prefix


@pytest.mark.parametrize(
    ("row", "match"),
    [
        (None, "not_compared"),
        (b"a" * 32, "matches"),
        (b"b" * 32, "mismatches"),
        (b"a" * 31 + b"b", "mismatches"),  # the prefix that answers show is the same
        (b"b" + b"a" * 31, "mismatches"),
        (b"a" * 8, "mismatches"),
        (b"", "mismatches"),
    ],
)
def test_fingerprints_are_compared_whole(row: bytes | None, match: str) -> None:
    assert compared(row, b"a" * 32) == match


AT_THE_RELAY = {
    # seen, history kept: HTTP status, the accept goes on, refusal
    ("nothing", False): (201, True, None),
    ("same_event", True): (200, False, None),
    ("same_event", False): (200, False, None),
    ("other_event", True): (409, False, Refusal.IDEMPOTENCY_KEY_REUSED),
    ("other_event", False): (409, False, Refusal.IDEMPOTENCY_KEY_REUSED),
}


@pytest.mark.parametrize(("seen", "kept"), list(itertools.product(Earlier, (True, False))))
def test_the_relay_has_one_answer_to_every_id_it_has_seen(seen: Earlier, kept: bool) -> None:
    answer = DUPLICATES.get((seen, kept))
    found = answer and (answer.http_status, answer.goes_on, answer.refusal)
    assert found == AT_THE_RELAY.get((seen.value, kept))


def test_a_repetition_hears_what_the_first_one_heard_and_whether_it_can_still_be_looked_up() -> None:
    first, again = DUPLICATES[Earlier.NOTHING, False], DUPLICATES[Earlier.SAME_EVENT, False]
    assert set(first.carries) == {"duplicate", "broker_message_id", "history_id", "log_id", "anchor", "skipped"}
    assert set(again.carries) == set(first.carries) | {"history_available", "first_seen_at"}


def test_every_yes_of_the_relay_carries_the_anchor_and_no_refusal_does() -> None:
    for answer in DUPLICATES.values():
        assert ("anchor" in answer.carries) is (answer.refusal is None)


def test_a_reused_id_is_told_which_event_the_relay_has_and_nothing_more() -> None:
    for kept in (True, False):
        answer = DUPLICATES[Earlier.OTHER_EVENT, kept]
        assert answer.carries == ("broker_fingerprint_prefix",)
        assert answer.conflict == "request_fingerprint_mismatch"


@pytest.mark.parametrize(
    ("dedupe", "seen"),
    [
        (None, "nothing"),
        (b"e" * 32, "same_event"),
        (b"f" * 32, "other_event"),
        (b"e" * 31 + b"f", "other_event"),
        (b"f" + b"e" * 31, "other_event"),
    ],
)
def test_a_repetition_is_known_by_the_id_of_its_event(dedupe: bytes | None, seen: str) -> None:
    assert earlier(dedupe, b"e" * 32) == seen
