"""The pace of senders: burst, refill, cap, independence, and repetitions that cost nothing for a while."""

from holdfast.protocol.schedule import SECOND
from holdfast.relay import limiter as module
from holdfast.relay.limiter import Limiter
from holdfast.relay.settings import Limits

LIMITS = Limits(messages_burst=30, messages_per_s=2, free_repeats=2, free_repeats_window_s=60)
START = 1_000_000 * SECOND


def _taken(limiter: Limiter, count: int, at: int, key: str = "alice", prefix: str = "e") -> int:
    """How many of so many different events pass."""
    return sum(not limiter.wait_s(key, f"{prefix}-{at}-{number}", at) for number in range(count))


def test_a_burst_passes_and_the_next_one_does_not() -> None:
    limiter = Limiter(LIMITS)
    assert _taken(limiter, 30, START) == 30
    assert limiter.wait_s("alice", "one more", START) == 1


def test_tokens_come_back_steadily_and_never_more_than_the_burst() -> None:
    limiter = Limiter(LIMITS)
    assert _taken(limiter, 30, START) == 30
    assert _taken(limiter, 10, START + 2 * SECOND) == 4
    assert _taken(limiter, 100, START + 3600 * SECOND) == 30


def test_whoever_waits_as_long_as_it_is_told_passes() -> None:
    slow = Limiter(Limits(messages_burst=1, messages_per_s=0.1))
    assert slow.wait_s("alice", "first", START) == 0
    wait_s = slow.wait_s("alice", "second", START)
    assert wait_s == 10
    assert slow.wait_s("alice", "second", START + wait_s * SECOND) == 0


def test_keys_do_not_share_a_pace() -> None:
    limiter = Limiter(LIMITS)
    assert _taken(limiter, 40, START) == 30
    assert _taken(limiter, 40, START, key="bob", prefix="f") == 30


def test_the_same_bytes_are_free_a_few_times_and_then_cost() -> None:
    limiter = Limiter(LIMITS)
    assert _taken(limiter, 29, START) == 29
    assert [limiter.wait_s("alice", "same", START) for _ in range(3)] == [0, 0, 0]  # once counted, twice free
    assert limiter.wait_s("alice", "same", START) > 0


def test_the_same_bytes_cost_again_after_the_window() -> None:
    limiter = Limiter(Limits(messages_burst=1, messages_per_s=0.001, free_repeats=5, free_repeats_window_s=60))
    assert limiter.wait_s("alice", "same", START) == 0
    assert limiter.wait_s("alice", "same", START + 60 * SECOND) == 0
    assert limiter.wait_s("alice", "same", START + 61 * SECOND) > 0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    limiter = Limiter(LIMITS)
    assert _taken(limiter, 30, START) == 30
    assert _taken(limiter, 5, START - 3600 * SECOND) == 0


def test_whoever_was_counted_while_the_clock_was_ahead_does_not_wait_until_it_has_caught_up() -> None:
    limiter = Limiter(LIMITS)
    assert _taken(limiter, 40, START + 3600 * SECOND) == 30
    assert _taken(limiter, 10, START) == 0
    assert _taken(limiter, 10, START + 2 * SECOND) == 4


def test_only_so_many_senders_and_events_are_remembered() -> None:
    limiter = Limiter(LIMITS)
    for number in range(module.EVENTS_MAX + 100):
        limiter.wait_s(f"key-{number}", f"event-{number}", START)
    assert len(limiter._seen) == module.EVENTS_MAX
    assert len(limiter._buckets) <= module.SENDERS_MAX
