"""What the sender does: every answer, against a list written apart from the table."""

import pytest

from holdfast.protocol.reaction import REACTIONS, Confirmation, FaultKind, Level, Reaction, RelaySays
from holdfast.protocol.refusal import REFUSALS, Refusal, Subject
from holdfast.protocol.schedule import send_wait


def words(text: str) -> set[str]:
    return set(text.split())


# Told about the event itself: offering the same bytes again does not help.
FATAL = words(
    """
    malformed too_large bad_event_id bad_signature unreadable kind_unsupported event_too_old not_a_member mesh_unknown
    destination_kind_unsupported destination_unknown may_not_post receipt_unknown max_age_passed not_permitted
    counter_not_increasing name_taken epoch_superseded grant_missing countersignature_missing invite_invalid key_taken
    last_admin subject_unknown clock_reused too_many_conflicts mesh_full
    """
)
PATIENT = words("rate_limited queue_full waiting_for_key receipt_early unavailable author_not_admitted")
OF_ITS_OWN = {
    # status, counts, level, heeds Retry-After, reseals
    "created": ("done", True, "info", False, False),
    "duplicate": ("done", True, "info", False, False),
    "duplicate_pruned": ("done", True, "warn", False, False),
    "idempotency_key_reused": ("dead", True, "warn", False, False),
    "held_back": ("pending", False, "info", False, False),
    "stale_key": ("pending", True, "info", False, True),
    "clock_ahead": ("pending", True, "warn", True, True),
    "timeout": ("pending", True, "warn", False, False),
    "connection_lost": ("pending", True, "warn", False, False),
    "server_error": ("pending", True, "warn", True, False),
    "not_understood": ("pending", True, "warn", True, False),
}


def expected(answer: RelaySays) -> tuple[str, bool, str, bool, bool]:
    if answer.value in OF_ITS_OWN:
        return OF_ITS_OWN[answer.value]
    if answer.value in FATAL:
        return ("dead", True, "warn", False, False)
    if answer.value in PATIENT:
        return ("pending", True, "info", True, False)
    return ("pending", True, "warn", True, False)  # it was not about the event


@pytest.mark.parametrize("answer", [*Confirmation, *Refusal, *FaultKind])
def test_the_sender_knows_what_to_do_with_every_answer(answer: RelaySays) -> None:
    found = REACTIONS[answer]
    assert (found.status, found.counts, found.level, found.heeds_retry_after, found.reseals) == expected(answer)


def test_a_row_that_was_held_back_is_due_again_at_once_whatever_happened_to_it_before() -> None:
    held_back = REACTIONS[Refusal.HELD_BACK]
    assert [held_back.wait(attempts, 0.5, retry_after_s=60) for attempts in (0, 1, 7)] == [0, 0, 0]


@pytest.mark.parametrize("answer", [answer for answer, found in REACTIONS.items() if answer is not Refusal.HELD_BACK])
def test_every_other_answer_lets_the_row_wait_as_its_attempts_and_the_relay_say(answer: RelaySays) -> None:
    found = REACTIONS[answer]
    assert found.wait(3, 0.5) == send_wait(3, 0.5)
    assert found.wait(1, 0.5, retry_after_s=60) == send_wait(1, 0.5, 60 if found.heeds_retry_after else None)


def test_no_two_answers_share_a_word() -> None:
    assert len(REACTIONS) == len(Confirmation) + len(Refusal) + len(FaultKind)


def test_every_refusal_that_could_end_a_row_is_listed_here() -> None:
    dead = {answer.value for answer, found in REACTIONS.items() if found.status == "dead"}
    assert dead == FATAL | {"idempotency_key_reused"}


@pytest.mark.parametrize("refusal", [refusal for refusal in Refusal if REFUSALS[refusal].subject is not Subject.EVENT])
def test_no_refusal_of_something_else_ends_a_row(refusal: Refusal) -> None:
    assert REACTIONS[refusal].status == "pending"


def test_a_row_is_sealed_anew_for_its_key_or_its_date_only() -> None:
    assert [answer for answer, found in REACTIONS.items() if found.reseals] == [
        Refusal.CLOCK_AHEAD,
        Refusal.STALE_KEY,
    ]


def test_a_confirmation_is_the_only_way_to_done() -> None:
    assert {answer for answer, found in REACTIONS.items() if found.status == "done"} == set(Confirmation)


def test_a_pruned_history_is_the_only_yes_worth_a_warning() -> None:
    loud: list[Reaction] = [REACTIONS[yes] for yes in Confirmation if REACTIONS[yes].level is Level.WARN]
    assert loud == [REACTIONS[Confirmation.DUPLICATE_PRUNED]]
