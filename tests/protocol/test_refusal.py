"""Refusals: every one, against lists written apart from the table."""

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.refusal import (
    PROBLEM_TYPE,
    REFUSALS,
    Lasting,
    Prefix,
    Refusal,
    Refused,
    Subject,
    ok_message,
    problem,
    refusal_in,
)


def words(text: str) -> set[str]:
    return set(text.split())


# What the daemon, a caller or an operator may simply try again.
TEMPORARY = words(
    """
    clock_ahead rate_limited queue_full held_back stale_key waiting_for_key receipt_early unavailable
    auth_required bootstrap_expired too_many_subscriptions daemon_busy too_many_streams insufficient_storage
    requeue_of_inflight requeue_unconfirmed too_many_old_keys session_queue_full shutting_down too_many_connections
    member_already_connected slow_reader slow_writer author_not_admitted
    """
)

STATUS = {
    400: """malformed bad_event_id bad_signature kind_unsupported clock_ahead event_too_old destination_kind_unsupported
            countersignature_missing mode_required kinds_required kind_out_of_range one_author_required
            limit_with_bootstrap limit_with_live column_unknown range_invalid token_in_query idempotency_keys_differ
            hook_invalid_json hook_payload_not_object hook_agent_unknown feature_param_invalid
            feature_param_below_floor""",
    401: "auth_required auth_failed token_invalid token_expired",
    403: """not_a_member may_not_post not_permitted invite_invalid author_not_admitted author_only socket_only
            host_not_allowed origin_not_allowed member_revoked""",
    404: """mesh_unknown destination_unknown receipt_unknown subject_unknown table_unknown consumer_unknown
            not_found ack_unknown author_missing""",
    408: "slow_reader slow_writer",
    409: """idempotency_key_reused counter_not_increasing name_taken epoch_superseded grant_missing key_taken last_admin
            cursor-ahead other_log clock_reused too_many_conflicts mesh_full
            checkpoint_backwards requeue_of_done requeue_of_aborted requeue_of_inflight requeue_of_other requeue_of_receipted
            cancel_too_late sequence_taken author_present document_conflicted document_not_conflicted document_changed document_full
            replaced_by_newer_connection member_already_connected""",
    410: "max_age_passed cursor-expired range_pruned",
    412: "stale_key waiting_for_key",
    413: "too_large frame_too_large hook_payload_too_large",
    415: "binary_frame",
    422: "unreadable hook_event_unknown",
    424: "held_back receipt_early",
    429: """rate_limited queue_full too_many_subscriptions daemon_busy too_many_streams session_queue_full
            too_many_old_keys""",
    500: "outbox_max_age_above_dedupe_window key_superseded host_changed persistent_in_ci",
    501: "feature_unavailable",
    503: "unavailable bootstrap_expired requeue_unconfirmed shutting_down too_many_connections",
    507: "insufficient_storage",
}

PREFIX = {
    "unsupported": """destination_kind_unsupported hook_event_unknown hook_agent_unknown binary_frame
                      feature_unavailable""",
    "blocked": "kind_unsupported member_revoked",
    "restricted": """not_a_member mesh_unknown may_not_post not_permitted invite_invalid author_not_admitted author_only
                     socket_only host_not_allowed origin_not_allowed replaced_by_newer_connection member_already_connected
                     ack_unknown key_superseded host_changed persistent_in_ci""",
    "rate-limited": """rate_limited too_many_subscriptions daemon_busy too_many_streams session_queue_full
                       too_many_connections""",
    "auth-required": "auth_required auth_failed token_invalid token_expired",
    "error": """queue_full held_back stale_key waiting_for_key receipt_early max_age_passed unavailable
                bootstrap_expired insufficient_storage requeue_unconfirmed shutting_down slow_reader slow_writer too_many_old_keys""",
}  # and every other one is `invalid`

CLOSE = {
    "binary_frame": 1003,
    "frame_too_large": 1009,
    "shutting_down": 1012,
    "too_many_connections": 1013,
    "replaced_by_newer_connection": 4003,
    "member_already_connected": 4004,
    "member_revoked": 4005,
    "slow_reader": 4006,
    "slow_writer": 4007,
    "feature_unavailable": 4010,
    "feature_param_invalid": 4011,
    "feature_param_below_floor": 4012,
}


def inverted(groups: dict[int, str] | dict[str, str]) -> dict[str, int | str]:
    return {code: key for key, codes in groups.items() for code in codes.split()}


def test_every_refusal_has_the_status_that_was_decided() -> None:
    assert {refusal.value: row.http_status for refusal, row in REFUSALS.items()} == inverted(STATUS)


def test_every_refusal_has_the_prefix_that_was_decided() -> None:
    prefixes = inverted(PREFIX)
    assert {refusal.value: row.prefix.value for refusal, row in REFUSALS.items()} == {
        refusal.value: prefixes.get(refusal.value, "invalid") for refusal in Refusal
    }
    assert set(prefixes) <= {refusal.value for refusal in Refusal}


def test_exactly_the_refusals_that_may_pass_by_themselves_are_temporary() -> None:
    assert {refusal.value for refusal, row in REFUSALS.items() if row.lasting is Lasting.TEMPORARY} == TEMPORARY
    assert {refusal.value for refusal, row in REFUSALS.items() if not row.is_permanent} == TEMPORARY


def test_exactly_the_refusals_of_a_connection_close_it_each_with_its_own_code() -> None:
    closing = {refusal.value: row.close_code for refusal, row in REFUSALS.items() if row.close_code is not None}
    assert closing == CLOSE
    assert {refusal.value for refusal, row in REFUSALS.items() if row.subject is Subject.CONNECTION} == set(CLOSE)
    assert len(set(closing.values())) == len(closing)


def test_a_refused_event_a_refused_hook_and_a_refused_start_are_told_apart() -> None:
    subjects = {refusal: row.subject for refusal, row in REFUSALS.items()}
    assert subjects[Refusal.QUEUE_FULL] is subjects[Refusal.GRANT_MISSING] is Subject.EVENT
    assert {refusal for refusal, found in subjects.items() if found is Subject.HOOK} == {
        refusal for refusal in Refusal if refusal.startswith("hook_") or refusal is Refusal.SESSION_QUEUE_FULL
    }
    assert {refusal for refusal, found in subjects.items() if found is Subject.START} == {
        Refusal.OUTBOX_MAX_AGE_ABOVE_DEDUPE_WINDOW,
        Refusal.KEY_SUPERSEDED,
        Refusal.HOST_CHANGED,
        Refusal.PERSISTENT_IN_CI,
    }


def test_what_administration_can_be_told_is_about_the_event_and_ends_it() -> None:
    for code in words(
        "grant_missing invite_invalid key_taken last_admin subject_unknown countersignature_missing mesh_full"
    ):
        row = REFUSALS[Refusal(code)]
        assert (row.subject, row.is_permanent) == (Subject.EVENT, True), code


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("grant_missing", "Grant the key to the member that the detail names, then advance again."),
        ("countersignature_missing", "key that the action names"),
        ("may_not_post", "Subscribe, and wait until the key is granted."),
        ("invite_invalid", "Ask an admin for a new one."),
        ("key_taken", "Make a new key pair."),
        ("last_admin", "Make another member an admin first."),
        ("subject_unknown", "member, topic, author or consumer"),
    ],
)
def test_a_person_is_told_what_helps(code: str, hint: str) -> None:
    assert hint in REFUSALS[Refusal(code)].sentence


def test_no_refusal_opens_with_the_word_that_clients_read_as_success() -> None:
    assert Prefix.DUPLICATE not in {row.prefix for row in REFUSALS.values()}


@pytest.mark.parametrize("refusal", Refusal)
def test_a_code_is_one_plain_word_and_the_name_of_its_member(refusal: Refusal) -> None:
    assert re.fullmatch(r"[a-z]+([_-][a-z]+)*", refusal.value)
    assert refusal.value.replace("-", "_").upper() == refusal.name


def test_codes_are_unique() -> None:
    assert len(Refusal.__members__) == len({refusal.value for refusal in Refusal})  # an alias would be a member too


@pytest.mark.parametrize("refusal", Refusal)
def test_a_person_is_told_in_a_sentence_or_two_of_their_own(refusal: Refusal) -> None:
    sentence = REFUSALS[refusal].sentence
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert len(sentence) <= 100
    assert [row.sentence for row in REFUSALS.values()].count(sentence) == 1


def test_a_problem_document_says_all_that_is_known() -> None:
    assert problem(Refusal.QUEUE_FULL, "bob has 1000 waiting", member="bob", pending_count=1000) == {
        "type": "urn:holdfast:refusal:queue_full",
        "title": "The recipient has too much waiting. It is offered again until there is room.",
        "status": 429,
        "detail": "bob has 1000 waiting",
        "code": "queue_full",
        "temporary": True,
        "member": "bob",
        "pending_count": 1000,
    }


@pytest.mark.parametrize("refusal", Refusal)
def test_every_refusal_makes_a_problem_document_even_without_a_detail(refusal: Refusal) -> None:
    document = problem(refusal)
    assert document.keys() == {"type", "title", "status", "code", "temporary"}
    assert document["type"] == PROBLEM_TYPE + refusal.value
    assert document["temporary"] is (refusal.value in TEMPORARY)


@pytest.mark.parametrize("member", ["type", "title", "status", "code", "temporary"])
def test_a_member_cannot_overwrite_what_the_problem_says_by_itself(member: str) -> None:
    with pytest.raises(TypeError, match=member):
        problem(Refusal.MALFORMED, "x", **{member: 1})


def test_a_nostr_message_is_prefix_code_and_detail() -> None:
    assert ok_message(Refusal.RATE_LIMITED, "60 in a minute") == "rate-limited: rate_limited: 60 in a minute"


def test_a_nostr_message_without_a_detail_says_the_sentence() -> None:
    assert ok_message(Refusal.NAME_TAKEN) == "invalid: name_taken: That name is in use. Choose another."


@given(refusal=st.sampled_from(Refusal), detail=st.text())
def test_a_nostr_message_is_read_back_whatever_its_detail(refusal: Refusal, detail: str) -> None:
    assert refusal_in(ok_message(refusal, detail)) is refusal


@pytest.mark.parametrize(
    "message",
    [
        "",
        "malformed",
        "invalid: event creation date is too far off",
        "duplicate: already have this event",
        "error: malformed: the right code behind another prefix",
        "invalid: not_invented_yet: said by a newer relay",
        ": : ",
    ],
)
def test_a_message_of_another_relay_is_not_taken_for_one_of_ours(message: str) -> None:
    assert refusal_in(message) is None


def test_a_refused_request_says_which_refusal_and_why_and_crosses_a_process_border() -> None:
    refused = Refused(Refusal.TOO_LARGE, "body has 40001 bytes")
    copy = pickle.loads(pickle.dumps(refused))
    assert str(refused) == str(copy) == "too_large: body has 40001 bytes"
    assert (copy.refusal, copy.detail) == (Refusal.TOO_LARGE, "body has 40001 bytes")
