"""Pacing: what is final is told at once and in order; of the rest only the latest, and not too often."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.hook.agent_sessions import Report
from holdfast.hook.pacer import Pacer
from holdfast.protocol.agent_event import AgentEvent, AgentKind
from holdfast.protocol.pacing import Pacing, PacingMode
from holdfast.protocol.schedule import SECOND


def event(number: int, kind: AgentKind = AgentKind.OUTPUT, session: str = "a") -> AgentEvent:
    return AgentEvent(id=str(number), kind=kind, agent="claude", session_id=session, at=number)


def final(number: int, session: str = "a") -> AgentEvent:
    return event(number, AgentKind.TURN_COMPLETED, session)


def offer(pacer: Pacer, position: int, told: AgentEvent, now: int) -> None:
    pacer.offer(Report(position, now, told), now)


def test_a_tick_is_what_is_left_of_the_budget() -> None:
    assert Pacing().tick_s == 3.8  # 16 of 20 a minute, rounded up
    assert Pacing(per_minute=1).tick_s == 60.0
    assert Pacing(per_minute=60, budget_ratio=1, reserve_per_minute=0).tick_s == 1.0
    assert Pacing().session_tick(0.2) == 3.0
    assert Pacing().session_tick(2) == 7.6


def taken(pacer: Pacer, now: int) -> list[str]:
    found = []
    while (item := pacer.next(now)[0]) is not None:
        pacer.settle(item, now)
        found.append(item.event.id)
    return found


def test_of_a_burst_the_first_and_the_latest_are_told() -> None:
    pacer = Pacer(Pacing(), 0)
    offer(pacer, 1, event(1), 0)
    assert taken(pacer, 0) == ["1"]
    for number in range(2, 100):
        offer(pacer, number, event(number), number)
    assert taken(pacer, 2 * SECOND) == []
    assert 0 < (pacer.next(2 * SECOND)[1] or 0) < 3.8
    assert taken(pacer, 4 * SECOND) == ["99"]
    assert (pacer.coalesced, pacer.settled, pacer.waiting) == (97, 99, 0)


def test_what_is_final_goes_first_in_order_and_ends_what_was_said_before() -> None:
    pacer = Pacer(Pacing(), 0)
    offer(pacer, 1, event(1, session="b"), 0)
    offer(pacer, 2, event(2), 0)
    for number in (3, 4, 5):
        offer(pacer, number, final(number), 0)
    assert pacer.settled == 0
    assert taken(pacer, 0) == ["3", "4", "5", "1"]
    assert pacer.settled == 5


def test_nothing_is_settled_beyond_what_is_still_open() -> None:
    pacer = Pacer(Pacing(), 7)
    assert pacer.settled == 7
    offer(pacer, 8, final(8), 0)
    offer(pacer, 9, event(9, session="b"), 0)
    assert pacer.settled == 7
    item, _ = pacer.next(0)
    assert item is not None
    pacer.settle(item, 0)
    assert pacer.settled == 8


def test_sessions_take_turns() -> None:
    pacer = Pacer(Pacing(mode=PacingMode.STRICT), 0)
    position, told = 0, []
    for now in range(0, 400 * SECOND, SECOND):
        for session in "abc":
            position += 1
            offer(pacer, position, event(position, session=session), now)
        item, _ = pacer.next(now)
        if item is not None:
            pacer.settle(item, now)
            told.append((now // SECOND, item.event.session_id))
    assert all(later - earlier >= 3.8 for (earlier, _), (later, _) in pairwise(told))
    counts = [sum(session == name for _, session in told) for name in "abc"]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) >= 30


def test_strict_holds_back_what_is_final_too() -> None:
    pacer = Pacer(Pacing(mode=PacingMode.STRICT), 0)
    for number in (1, 2):
        offer(pacer, number, final(number), 0)
    assert taken(pacer, 0) == ["1"]
    assert taken(pacer, 3 * SECOND) == []
    assert taken(pacer, 4 * SECOND) == ["2"]


def test_off_holds_back_nothing() -> None:
    pacer = Pacer(Pacing(mode=PacingMode.OFF), 0)
    for number in range(1, 50):
        offer(pacer, number, event(number) if number % 3 else final(number), 0)
    assert taken(pacer, 0) == [str(number) for number in range(1, 50)]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 3 * SECOND), st.integers(0, 3)), max_size=60
    ),
    st.sampled_from(PacingMode),
)
def test_whatever_comes_every_final_is_told_in_order_and_each_session_ends_with_its_latest(
    steps: list[tuple[str, bool, int, int]], mode: PacingMode
) -> None:
    pacer, now, told, offered = Pacer(Pacing(mode=mode), 0), 0, [], []
    for position, (session, is_final, wait, takes) in enumerate(steps, start=1):
        now += wait
        offered.append(final(position, session) if is_final else event(position, session=session))
        offer(pacer, position, offered[-1], now)
        for _ in range(takes):
            item, _ = pacer.next(now)
            if item is not None:
                pacer.settle(item, now)
                told.append(item.event)
        open_positions = {one.at for one in offered} - {one.at for one in told}
        assert pacer.settled >= min(open_positions, default=position + 1) - 1
    while pacer.waiting:
        now += SECOND
        item, _ = pacer.next(now)
        if item is not None:
            pacer.settle(item, now)
            told.append(item.event)
    assert [one for one in told if one.is_final] == [one for one in offered if one.is_final]
    assert len(told) == len({one.id for one in told})
    assert pacer.settled == len(steps)
    for session in {one.session_id for one in offered}:
        latest = [one for one in offered if one.session_id == session][-1]
        assert latest in told
