"""Times: waits between attempts, the age limit of the outbox, and the relay's rules about an event's date.

Times are whole microseconds; a wait is counted from the end of the attempt. The arithmetic is in whole numbers, because
floating point cannot hold a tenth of a day exactly.
"""

from enum import StrEnum

from holdfast.protocol.refusal import Refusal, Refused

SECOND = 1_000_000  # microseconds
HOUR = 3600 * SECOND
DAY = 24 * HOUR

SEND_WAIT_FIRST = SECOND // 2  # after the first attempt; doubles from there
SEND_WAIT_MAX = 30 * SECOND
SEND_JITTER_PERCENT = 25  # subtracted, at most, so that the cap is never exceeded
RETRY_AFTER_S_MAX = 3600  # a longer Retry-After is cut to this, so that no typo at a relay strands an outbox
HOOK_WAIT_FIRST = SECOND
HOOK_WAIT_MAX = 60 * SECOND

DEDUPE_DAYS_MIN = 7  # a relay that remembers ids for less is not safe to send to
MARGIN_PERCENT = 10  # of the relay's window, kept between the oldest row offered and the oldest id remembered
MARGIN_HOURS_MIN = 24
MAX_AGE_HOURS_DEFAULT = 168  # where the relay remembers ids for ever
MAX_AGE_HOURS_CAP = 720

CLOCK_AHEAD_MAX = 15 * 60 * SECOND
# An event may be dated up to CLOCK_AHEAD_MAX after its dedupe row was made, so the row must outlive the window.
DEDUPE_KEPT_BEYOND_WINDOW = HOUR


class DedupeMode(StrEnum):
    """How long a relay remembers ids, as it says when a device connects."""

    RETENTION_SCOPED = "retention_scoped"
    PERMANENT = "permanent"


def send_wait(attempts: int, fraction: float, retry_after_s: int | None = None) -> int:
    """Microseconds to wait after that many attempts; `fraction`, from 0 up to 1, is the caller's random number.

    A row without a counted attempt, such as one that was held back, waits only for a Retry-After.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"a random fraction lies from 0 up to 1, not at {fraction}")
    whole = 0 if attempts == 0 else _doubled(SEND_WAIT_FIRST, SEND_WAIT_MAX, attempts)
    jittered = whole - int(whole * SEND_JITTER_PERCENT / 100 * fraction)
    return max(jittered, min(retry_after_s or 0, RETRY_AFTER_S_MAX) * SECOND)


def hook_wait(attempts: int) -> int:
    """Microseconds to wait before a hook row is handled again; no jitter, because sessions do not compete."""
    return _doubled(HOOK_WAIT_FIRST, HOOK_WAIT_MAX, attempts)


def _doubled(first: int, most: int, attempts: int) -> int:
    if attempts < 1:
        raise ValueError(f"a wait follows an attempt, and {attempts} were made")
    return most if attempts > most.bit_length() else min(first << (attempts - 1), most)


def margin_hours(dedupe_retention_days: int) -> int:
    """Hours before the relay forgets an id from which on its row is no longer offered."""
    return max(MARGIN_HOURS_MIN, -(-dedupe_retention_days * 24 * MARGIN_PERCENT // 100))  # rounded up


def override_hours_max(dedupe_retention_days: int) -> int:
    """The longest age limit that a user may ask for."""
    return dedupe_retention_days * 24 - MARGIN_HOURS_MIN


def max_age_hours(
    mode: DedupeMode,
    dedupe_retention_days: int | None,
    override: int | None = None,
    default: int = MAX_AGE_HOURS_DEFAULT,
) -> int:
    """After how many hours a row dies unsent, given what the relay remembers and what the user set."""
    if override is not None and override < 1:
        raise Refused(Refusal.MALFORMED, f"max_age_hours_override is {override}, it must be at least 1")
    if mode is DedupeMode.PERMANENT:  # no window, so no override can be too long
        return override or min(default, MAX_AGE_HOURS_CAP)
    days = _checked_days(dedupe_retention_days)
    if override is None:
        return days * 24 - margin_hours(days)
    if override > override_hours_max(days):
        raise Refused(
            Refusal.OUTBOX_MAX_AGE_ABOVE_DEDUPE_WINDOW,
            f"max_age_hours_override is {override}, at most {override_hours_max(days)} with {days} days of dedupe",
        )
    return override


def _checked_days(days: int | None) -> int:
    if days is None:
        raise Refused(Refusal.FEATURE_PARAM_INVALID, "dedupe_retention_days is missing")
    if days < DEDUPE_DAYS_MIN:
        raise Refused(
            Refusal.FEATURE_PARAM_BELOW_FLOOR,
            f"dedupe_retention_days is {days}, at least {DEDUPE_DAYS_MIN} needed",
        )
    return days


def is_past_max_age(enqueued_at: int, at: int, hours: int) -> bool:
    """Whether a waiting row is too old to be offered safely."""
    return at - enqueued_at >= hours * HOUR


def dedupe_expires_at(first_seen_at: int, window_days: int) -> int:
    """When the relay may forget an id."""
    return first_seen_at + window_days * DAY + DEDUPE_KEPT_BEYOND_WINDOW


def clock_refusal(created_at_s: int, at: int, window_days: int | None) -> Refusal | None:
    """The relay's refusal of an event's date (in seconds), if it is wrong; without a window nothing is too old."""
    created_at = created_at_s * SECOND
    if created_at - at > CLOCK_AHEAD_MAX:
        return Refusal.CLOCK_AHEAD
    if window_days is not None and at - created_at > window_days * DAY:
        return Refusal.EVENT_TOO_OLD
    return None
