"""Waits, ages and clocks, against numbers written by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import (
    DAY,
    HOUR,
    SECOND,
    DedupeMode,
    clock_refusal,
    dedupe_expires_at,
    hook_wait,
    is_past_max_age,
    margin_hours,
    max_age_hours,
    override_hours_max,
    send_wait,
)

SCOPED, PERMANENT = DedupeMode.RETENTION_SCOPED, DedupeMode.PERMANENT
ALMOST_ONE = math.nextafter(1.0, 0.0)


def test_the_sender_waits_half_a_second_and_doubles_up_to_thirty() -> None:
    waits = [send_wait(attempts, 0.0) for attempts in range(1, 10)]
    assert [wait / SECOND for wait in waits] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_jitter_takes_off_up_to_a_quarter() -> None:
    assert send_wait(3, 0.5) == 1_750_000
    assert 1_500_000 <= send_wait(3, ALMOST_ONE) <= 1_500_001


@given(attempts=st.integers(1, 10**6), fraction=st.floats(0, 1, exclude_max=True))
def test_a_wait_stays_between_three_quarters_and_the_whole(attempts: int, fraction: float) -> None:
    whole = min(500_000 * 2 ** min(attempts - 1, 10), 30_000_000)
    assert 0.75 * whole <= send_wait(attempts, fraction) <= whole


def test_retry_after_is_waited_for_when_it_is_longer() -> None:
    assert send_wait(1, 0.0, retry_after_s=7) == 7 * SECOND
    assert send_wait(9, 0.0, retry_after_s=7) == 30 * SECOND
    assert send_wait(1, 0.0, retry_after_s=0) == send_wait(1, 0.0)


def test_an_absurd_retry_after_is_cut_to_an_hour() -> None:
    assert send_wait(1, 0.0, retry_after_s=10**9) == HOUR


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2.0, math.nan])
def test_a_random_number_out_of_range_is_a_bug(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        send_wait(1, fraction)


def test_a_row_without_an_attempt_that_counted_waits_for_nothing_but_a_retry_after() -> None:
    assert [send_wait(0, fraction) for fraction in (0.0, 0.5, 0.999)] == [0, 0, 0]
    assert send_wait(0, 0.5, retry_after_s=7) == 7 * SECOND


def test_no_wait_follows_fewer_attempts_than_there_can_be() -> None:
    for attempts in (0, -1):
        with pytest.raises(ValueError, match="follows an attempt"):
            hook_wait(attempts)
    with pytest.raises(ValueError, match="follows an attempt"):
        send_wait(-1, 0.0)


def test_a_hook_waits_a_second_and_doubles_up_to_a_minute() -> None:
    waits = [hook_wait(attempts) / SECOND for attempts in (1, 2, 3, 4, 5, 6, 7, 8, 20, 10**9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


@pytest.mark.parametrize(
    ("days", "margin", "age", "override"),
    [
        (7, 24, 144, 144),
        (10, 24, 216, 216),
        (14, 34, 302, 312),
        (30, 72, 648, 696),
        (90, 216, 1944, 2136),
        (365, 876, 7884, 8736),
    ],
)
def test_the_age_limit_follows_from_what_the_relay_remembers(days: int, margin: int, age: int, override: int) -> None:
    assert margin_hours(days) == margin
    assert max_age_hours(SCOPED, days) == age
    assert override_hours_max(days) == override
    assert max_age_hours(SCOPED, days, override=override) == override
    with pytest.raises(Refused, match=f"at most {override} ") as refused:
        max_age_hours(SCOPED, days, override=override + 1)
    assert refused.value.refusal is Refusal.OUTBOX_MAX_AGE_ABOVE_DEDUPE_WINDOW


@given(days=st.integers(7, 100_000))
def test_a_row_always_dies_a_day_before_the_relay_forgets_it(days: int) -> None:
    assert 1 <= max_age_hours(SCOPED, days) <= override_hours_max(days) == days * 24 - 24


@pytest.mark.parametrize("days", [6, 1, 0, -1])
def test_a_relay_that_forgets_within_a_week_is_refused(days: int) -> None:
    with pytest.raises(Refused, match=f"is {days}, at least 7") as refused:
        max_age_hours(SCOPED, days)
    assert refused.value.refusal is Refusal.FEATURE_PARAM_BELOW_FLOOR


def test_a_relay_that_does_not_say_how_long_it_remembers_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        max_age_hours(SCOPED, None)
    assert refused.value.refusal is Refusal.FEATURE_PARAM_INVALID


def test_where_ids_are_kept_for_ever_a_default_holds_up_to_a_cap() -> None:
    assert max_age_hours(PERMANENT, None) == 168
    assert max_age_hours(PERMANENT, None, default=700) == 700
    assert max_age_hours(PERMANENT, None, default=721) == 720
    assert max_age_hours(PERMANENT, None, override=9000) == 9000
    assert max_age_hours(PERMANENT, 3) == 168


@pytest.mark.parametrize("mode", DedupeMode)
@pytest.mark.parametrize("override", [0, -5])
def test_an_override_of_no_time_at_all_is_refused(mode: DedupeMode, override: int) -> None:
    with pytest.raises(Refused) as refused:
        max_age_hours(mode, 30, override=override)
    assert refused.value.refusal is Refusal.MALFORMED


def test_a_row_is_too_old_from_the_last_microsecond_on() -> None:
    assert not is_past_max_age(5, 5 + 144 * HOUR - 1, 144)
    assert is_past_max_age(5, 5 + 144 * HOUR, 144)


AT_S = 1_800_000_000
AT = AT_S * SECOND


@pytest.mark.parametrize(
    ("created_at_s", "refusal"),
    [
        (AT_S, None),
        (AT_S + 900, None),
        (AT_S + 901, Refusal.CLOCK_AHEAD),
        (AT_S - 6 * 86_400, None),
        (AT_S - 7 * 86_400, None),
        (AT_S - 7 * 86_400 - 1, Refusal.EVENT_TOO_OLD),
    ],
)
def test_an_event_may_be_old_but_neither_forgotten_nor_of_tomorrow(created_at_s: int, refusal: Refusal | None) -> None:
    assert clock_refusal(created_at_s, AT, window_days=7) is refusal


def test_where_ids_are_kept_for_ever_nothing_is_too_old() -> None:
    assert clock_refusal(0, AT, window_days=None) is None
    assert clock_refusal(AT_S + 901, AT, window_days=None) is Refusal.CLOCK_AHEAD


@given(days=st.integers(7, 400), age_s=st.integers(-900, 7 * 86_400), later=st.integers(0, DAY))
def test_no_event_is_taken_again_after_its_id_was_forgotten(days: int, age_s: int, later: int) -> None:
    created_at_s = AT_S - age_s
    assert clock_refusal(created_at_s, AT, days) is None
    assert clock_refusal(created_at_s, dedupe_expires_at(AT, days) + later, days) is Refusal.EVENT_TOO_OLD


def test_an_id_outlives_the_window_by_an_hour() -> None:
    assert dedupe_expires_at(AT, 7) == AT + 7 * DAY + HOUR
    latest = AT + 7 * DAY + 900 * SECOND  # for an event that was dated a quarter of an hour ahead
    assert clock_refusal(AT_S + 900, latest, 7) is None
    assert latest < dedupe_expires_at(AT, 7)
