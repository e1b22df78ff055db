"""The bounded queue of a session: the rules one by one, and a twin that does it with a plain list."""

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st

from holdfast.protocol.hook_queue import (
    CLASSES,
    DEFAULT,
    PENDING_MAX,
    SENT_BACK_ERROR,
    SENT_BACK_WAIT_S,
    STAYS,
    Item,
    Outcome,
    Queue,
    Settings,
    Verdict,
    finish,
    forget,
    guarded,
    hold,
    offer,
    take,
)


def offered(types: list[str], settings: Settings = DEFAULT, queue: Queue | None = None) -> list[Outcome]:
    """Rows 1, 2, 3, … of these types, one after the other."""
    outcomes: list[Outcome] = []
    queue = queue or Queue()
    for row_id, event_type in enumerate(types, start=1):
        outcomes.append(offer(queue, Item(row_id, event_type), settings))
        queue = outcomes[-1].queue
    return outcomes


def waiting(queue: Queue) -> list[int]:
    return [item.row_id for item in queue.pending]


def coalesced(outcomes: list[Outcome]) -> list[tuple[int, str]]:
    return [(row.row_id, row.label) for outcome in outcomes for row in outcome.coalesced]


def test_the_latest_of_a_burst_takes_the_place_of_the_earlier_one() -> None:
    outcomes = offered(["tool_done", "tool_done"])
    assert waiting(outcomes[-1].queue) == [2]
    assert coalesced(outcomes) == [(1, "coalesced:tool_done")]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.QUEUED, Verdict.REPLACED]


def test_the_place_in_the_queue_is_kept() -> None:
    assert waiting(offered(["tool_use", "tool_done", "tool_use"])[-1].queue) == [3, 2]


def test_a_burst_does_not_reach_across_a_critical_event() -> None:
    outcomes = offered(["tool_use", "user_prompt_submit", "tool_use"])
    assert waiting(outcomes[-1].queue) == [1, 2, 3]
    assert coalesced(outcomes) == []


def test_a_burst_after_a_critical_event_coalesces_within_itself() -> None:
    outcomes = offered(["tool_use", "user_prompt_submit", "tool_use", "tool_done", "tool_use"])
    assert waiting(outcomes[-1].queue) == [1, 2, 5, 4]


def test_without_room_a_bursty_event_among_critical_ones_is_dropped() -> None:
    outcomes = offered(["session_start", "agent_stop", "tool_use"], Settings(pending_max=2))
    assert waiting(outcomes[-1].queue) == [1, 2]
    assert outcomes[-1].verdict is Verdict.DROPPED
    assert coalesced(outcomes) == [(3, "coalesced:tool_use")]


def test_without_room_the_oldest_bursty_event_goes_under_the_name_of_the_new_one() -> None:
    outcomes = offered(["tool_use", "error", "tool_use", "tool_done"], Settings(pending_max=3))
    assert waiting(outcomes[-1].queue) == [2, 3, 4]
    assert coalesced(outcomes) == [(1, "coalesced:tool_done")]


def test_a_reserve_keeps_bursts_out_of_the_last_places() -> None:
    outcomes = offered(["tool_use", "tool_done", "progress"], Settings(pending_max=4, critical_reserve=2))
    assert waiting(outcomes[-1].queue) == [2, 3]
    assert coalesced(outcomes) == [(1, "coalesced:progress")]


def test_a_reserve_of_everything_leaves_no_place_for_bursts() -> None:
    outcomes = offered(["tool_use", "agent_stop"], Settings(pending_max=2, critical_reserve=2))
    assert waiting(outcomes[-1].queue) == [2]
    assert coalesced(outcomes) == [(1, "coalesced:tool_use")]


def test_critical_events_push_bursts_out_oldest_first() -> None:
    outcomes = offered(
        ["tool_use", "tool_done", "session_start", "user_prompt_submit", "agent_stop"],
        Settings(pending_max=4, critical_reserve=2),
    )
    assert waiting(outcomes[-1].queue) == [2, 3, 4, 5]
    assert coalesced(outcomes) == [(1, "coalesced:agent_stop")]
    assert Verdict.SENT_BACK not in {outcome.verdict for outcome in outcomes}


def test_a_critical_event_without_room_goes_back_and_is_not_lost() -> None:
    outcomes = offered(["session_start", "user_prompt_submit", "agent_stop"], Settings(pending_max=2))
    assert [outcome.verdict for outcome in outcomes] == [Verdict.QUEUED, Verdict.QUEUED, Verdict.SENT_BACK]
    assert waiting(outcomes[-1].queue) == [1, 2]
    assert coalesced(outcomes) == []
    assert (SENT_BACK_ERROR, SENT_BACK_WAIT_S) == ("backpressure:session_queue_full", 1)


def test_nothing_overtakes_an_event_that_went_back() -> None:
    narrow = Settings(pending_max=2)
    queue = offered(["session_start", "user_prompt_submit", "agent_stop"], narrow)[-1].queue
    queue = finish(take(queue), narrow)  # there is room now
    for later in (Item(4, "session_start"), Item(5, "tool_use")):
        outcome = offer(queue, later, narrow)
        assert (outcome.verdict, waiting(outcome.queue), outcome.coalesced) == (Verdict.SENT_BACK, [2], ())
        queue = outcome.queue
    queue = offer(queue, Item(3, "agent_stop"), narrow).queue
    assert waiting(queue) == [2, 3]
    queue = finish(take(queue), narrow)
    assert waiting(offer(queue, Item(4, "session_start"), narrow).queue) == [3, 4]


def test_an_event_that_went_back_is_not_overtaken_when_one_before_it_is_here_again() -> None:
    queue = take(offered(["session_start", "agent_stop", "session_end"])[-1].queue)
    _, queue = hold(queue)  # 1 is to be retried; 2 and 3 go back with it
    assert offer(queue, Item(4, "error")).verdict is Verdict.SENT_BACK
    queue = offer(offer(queue, Item(4, "error")).queue, Item(1, "session_start")).queue
    for later in (Item(3, "session_end"), Item(4, "error"), Item(5, "compact")):  # due before 2 is
        outcome = offer(queue, later)
        assert (outcome.verdict, waiting(outcome.queue)) == (Verdict.SENT_BACK, [1])
        queue = outcome.queue
    for row_id, event_type in ((2, "agent_stop"), (3, "session_end"), (4, "error"), (5, "compact")):
        queue = offer(queue, Item(row_id, event_type)).queue
    assert (waiting(queue), queue.away) == ([1, 2, 3, 4, 5], frozenset())


def test_a_bursty_event_that_comes_back_to_be_dropped_holds_up_nobody() -> None:
    narrow = Settings(pending_max=1)
    queue = Queue((Item(1, "session_start"),), away=frozenset({2}))
    assert offer(queue, Item(3, "agent_stop"), narrow).verdict is Verdict.SENT_BACK
    outcome = offer(queue, Item(2, "tool_use"), narrow)
    assert (outcome.verdict, outcome.queue.away) == (Verdict.DROPPED, frozenset())


def test_an_event_that_ended_elsewhere_holds_up_its_session_no_longer() -> None:
    _, queue = hold(take(offered(["session_start", "agent_stop"])[-1].queue))
    assert offer(queue, Item(2, "agent_stop")).verdict is Verdict.SENT_BACK
    queue = forget(queue, 1)
    assert waiting(offer(queue, Item(2, "agent_stop")).queue) == [2]


def test_an_event_that_another_worker_has_is_not_handled_here_too() -> None:
    marks = guarded(pending_max=4, claim_high=2)
    queue = offered(["session_start", "agent_stop"], marks)[-1].queue
    assert queue.is_paused
    queue = forget(forget(queue, 1, marks), 2, marks)
    assert (waiting(queue), queue.is_paused) == ([], False)


def test_forgetting_an_event_that_is_not_known_or_is_being_handled_changes_nothing() -> None:
    queue = take(offered(["session_start", "agent_stop"])[-1].queue)
    assert forget(forget(queue, 9), 1) == queue


def test_an_event_that_goes_back_twice_still_holds_the_later_ones() -> None:
    narrow = Settings(pending_max=1)
    queue = offered(["session_start", "agent_stop"], narrow)[-1].queue
    queue = offer(queue, Item(2, "agent_stop"), narrow).queue
    queue = finish(take(queue), narrow)
    assert offer(queue, Item(3, "error"), narrow).verdict is Verdict.SENT_BACK
    assert offer(queue, Item(2, "agent_stop"), narrow).verdict is Verdict.QUEUED


def test_a_row_that_is_here_already_is_ignored_whether_it_waits_or_is_being_handled() -> None:
    queue = take(offered(["session_start", "agent_stop"])[-1].queue)
    for known in (Item(1, "session_start"), Item(2, "agent_stop")):
        outcome = offer(queue, known)
        assert (outcome.verdict, outcome.queue, outcome.coalesced) == (Verdict.KNOWN, queue, ())
    assert offer(finish(queue), Item(1, "session_start")).verdict is Verdict.QUEUED


def test_an_event_in_a_handlers_hands_is_not_replaced() -> None:
    queue = take(offered(["tool_use"])[-1].queue)
    outcome = offer(queue, Item(2, "tool_use"))
    assert (outcome.verdict, waiting(outcome.queue)) == (Verdict.QUEUED, [2])


def test_a_session_is_paused_at_the_high_mark_and_claimed_from_again_at_the_low_one() -> None:
    marks = guarded()
    outcomes = offered(["agent_stop"] * 24, marks)
    assert [outcome.queue.is_paused for outcome in outcomes] == [False] * 23 + [True]
    queue, paused_at = outcomes[-1].queue, []
    while queue.pending:
        queue = finish(take(queue), marks)
        paused_at += [len(queue.pending)] if queue.is_paused else []
    assert paused_at == list(range(23, 8, -1))


def test_an_event_being_handled_still_counts_towards_the_marks() -> None:
    marks = guarded(pending_max=4, claim_high=2, claim_low=1)
    queue = take(offer(Queue(), Item(1, "agent_stop"), marks).queue)
    assert offer(queue, Item(2, "agent_stop"), marks).queue.is_paused


def test_without_watermarks_no_session_is_paused() -> None:
    assert not offered(["agent_stop"] * PENDING_MAX)[-1].queue.is_paused


def test_the_rules_for_pressure_are_off_unless_asked_for() -> None:
    assert (DEFAULT.pending_max, DEFAULT.critical_reserve, DEFAULT.claim_high) == (32, 0, None)
    assert guarded() == Settings(32, 8, 24, 8)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (guarded(4), (4, 4, 1, 0)),
        (guarded(40), (40, 8, 32, 10)),
        (guarded(10, claim_high=50), (10, 8, 10, 3)),
        (guarded(10, claim_high=5, claim_low=5), (10, 8, 5, 4)),
        (guarded(10, claim_high=5, claim_low=-1), (10, 8, 5, 0)),
        (guarded(10, claim_high=0), (10, 8, 1, 0)),
        (guarded(10, critical_reserve=-3), (10, 0, 2, 0)),
        (guarded(10, critical_reserve=11), (10, 10, 2, 0)),
    ],
)
def test_settings_that_contradict_each_other_are_brought_into_range(
    settings: Settings, expected: tuple[int, int, int, int]
) -> None:
    assert (
        settings.pending_max,
        settings.critical_reserve,
        settings.claim_high,
        settings.claim_low,
    ) == expected


def test_a_row_to_be_retried_holds_its_session_until_it_is_back() -> None:
    queue = take(offered(["session_start", "tool_use", "agent_stop"])[-1].queue)
    released, queue = hold(queue)
    assert [item.row_id for item in released] == [2, 3]
    assert offer(queue, Item(2, "tool_use")).verdict is Verdict.SENT_BACK
    queue = offer(queue, Item(1, "session_start")).queue
    assert waiting(offer(queue, Item(2, "tool_use")).queue) == [1, 2]


def test_holding_a_session_lets_go_of_its_pause() -> None:
    marks = guarded()
    queue = take(offered(["agent_stop"] * 24, marks)[-1].queue)
    assert queue.is_paused
    assert not hold(queue)[1].is_paused


def test_one_event_is_handled_at_a_time() -> None:
    queue = take(offered(["session_start", "agent_stop"])[-1].queue)
    with pytest.raises(ValueError, match="row 1 is still"):
        take(queue)
    with pytest.raises(ValueError, match="nothing waits"):
        take(Queue())
    with pytest.raises(ValueError, match="nothing is being handled"):
        hold(Queue())


def test_an_event_without_a_type_is_called_unknown() -> None:
    assert coalesced(offered(["", ""])) == [(1, "coalesced:unknown")]


def test_classes_are_as_agreed_and_everything_else_is_bursty() -> None:
    critical = {"session_start", "user_prompt_submit", "agent_stop", "session_end", "notification", "error"}
    critical |= {"subagent_stop", "compact"}
    assert {kind for kind in CLASSES if Item(1, kind).is_critical} == critical
    assert set(CLASSES) - critical == {"tool_use", "tool_done", "subagent_start"}
    assert not Item(1, "never_heard_of").is_critical


def test_a_worker_keeps_what_is_queued_and_lets_go_of_the_rest() -> None:
    assert {verdict.value for verdict, stays in STAYS.items() if stays} == {"queued", "replaced", "known"}
    assert {verdict.value for verdict, stays in STAYS.items() if not stays} == {"dropped", "sent_back"}


CRITICAL = {"session_start", "agent_stop"}
TYPES = [*sorted(CRITICAL), "tool_use", "tool_done", "progress"]


class PlainList:
    """The same rules on a list that changes in place, step by step as one would say them aloud."""

    def __init__(self, pending_max: int, reserve: int) -> None:
        self.pending: list[Item] = []
        self.pending_max, self.reserve = pending_max, reserve
        self.dropped: list[int] = []

    def drop_oldest_bursty(self) -> bool:
        for item in self.pending:
            if item.event_type not in CRITICAL:
                self.pending.remove(item)
                self.dropped.append(item.row_id)
                return True
        return False

    def offer_critical(self, item: Item) -> str:
        while len(self.pending) >= self.pending_max:
            if not self.drop_oldest_bursty():
                return "sent_back"
        self.pending.append(item)
        return "queued"

    def offer_bursty(self, item: Item) -> str:
        for index in range(len(self.pending) - 1, -1, -1):
            if self.pending[index].event_type in CRITICAL:
                break
            if self.pending[index].event_type == item.event_type:
                self.dropped.append(self.pending[index].row_id)
                self.pending[index] = item
                return "replaced"
        limit = self.pending_max - self.reserve
        if limit == 0:
            self.dropped.append(item.row_id)
            return "dropped"
        while sum(waiting.event_type not in CRITICAL for waiting in self.pending) >= limit:
            self.drop_oldest_bursty()
        if len(self.pending) >= self.pending_max and not self.drop_oldest_bursty():
            self.dropped.append(item.row_id)
            return "dropped"
        self.pending.append(item)
        return "queued"


@given(
    steps=st.lists(st.sampled_from([*TYPES, "take"]), max_size=40),
    pending_max=st.integers(1, 5),
    reserve=st.integers(0, 5),
)
def test_the_queue_is_that_of_the_plain_list(steps: list[str], pending_max: int, reserve: int) -> None:
    settings = Settings(pending_max, min(reserve, pending_max))
    queue, twin = Queue(), PlainList(pending_max, settings.critical_reserve)
    dropped: list[int] = []
    for row_id, step in enumerate(steps, start=1):
        if step == "take":
            if queue.pending:
                queue = finish(take(queue), settings)
                twin.pending.pop(0)
            continue
        item = Item(row_id, step)
        outcome = offer(Queue(queue.pending), item, settings)  # what went back is looked at apart
        verdict = twin.offer_critical(item) if step in CRITICAL else twin.offer_bursty(item)
        queue = outcome.queue
        dropped += [row.row_id for row in outcome.coalesced]
        assert (outcome.verdict, waiting(queue)) == (verdict, [item.row_id for item in twin.pending])
    assert dropped == twin.dropped


class Outbox:
    """The stored rows of one session, as plainly as can be: who is due, and what has ended."""

    def __init__(self) -> None:
        self.types: list[str] = []
        self.due_at: dict[int, int] = {}  # of the rows that nobody holds
        self.closed: list[int] = []
        self.now = 0

    def arrive(self, event_type: str) -> None:
        self.types.append(event_type)
        self.due_at[len(self.types)] = self.now

    def claim(self, rows_max: int) -> list[Item]:
        """What is due, the longest due first: a row that waits is passed by newer ones that do not."""
        due = sorted((at, row_id) for row_id, at in self.due_at.items() if at <= self.now)
        claimed = [row_id for _, row_id in due[:rows_max]]
        for row_id in claimed:
            del self.due_at[row_id]
        return [Item(row_id, self.types[row_id - 1]) for row_id in claimed]

    def put_back(self, row_id: int, wait: int) -> None:
        self.due_at[row_id] = self.now + wait


def offer_all(outbox: Outbox, queue: Queue, settings: Settings, rows_max: int) -> Queue:
    for item in outbox.claim(rows_max):
        outcome = offer(queue, item, settings)
        queue = outcome.queue
        outbox.closed += [row.row_id for row in outcome.coalesced]
        if outcome.verdict is Verdict.SENT_BACK:
            outbox.put_back(item.row_id, 1)
    return queue


# What happens in one unit of time: these events arrive, the worker claims, and the event in hand is handled, is still in
# hand, or fails and waits for so long.
ROUNDS = st.lists(
    st.tuples(
        st.lists(st.sampled_from([*sorted(CRITICAL), *TYPES]), max_size=3),
        st.sampled_from(["handled", "in hand"]) | st.integers(0, 4),
    ),
    max_size=15,
)
AFTERWARDS: tuple[list[str], str | int] = ([], "handled")
ROUNDS_MAX = 5000


@settings_of_test(max_examples=800)
@given(rounds=ROUNDS, pending_max=st.integers(1, 4), rows_max=st.integers(1, 5))
def test_every_critical_event_is_handled_once_and_in_order_however_it_went(
    rounds: list[tuple[list[str], str | int]], pending_max: int, rows_max: int
) -> None:
    settings, outbox, queue = Settings(pending_max), Outbox(), Queue()
    handled: list[int] = []
    while outbox.now < len(rounds) or (len(handled + outbox.closed) < len(outbox.types) and outbox.now < ROUNDS_MAX):
        arriving, outcome = rounds[outbox.now] if outbox.now < len(rounds) else AFTERWARDS
        outbox.now += 1
        for event_type in arriving:
            outbox.arrive(event_type)
        queue = offer_all(outbox, queue, settings, rows_max)
        if queue.pending and queue.handling is None:
            queue = take(queue)
        in_hand = queue.handling
        if in_hand is None or outcome == "in hand":
            continue
        if outcome == "handled":
            handled.append(in_hand.row_id)
            queue = finish(queue, settings)
        else:
            outbox.put_back(in_hand.row_id, int(outcome))
            released, queue = hold(queue)
            for item in released:
                outbox.put_back(item.row_id, item.row_id % 3)  # or any other wait
    types = dict(enumerate(outbox.types, start=1))
    assert sorted(handled + outbox.closed) == list(types)  # each ended once, and none is refused for ever
    for place, row_id in enumerate(handled):
        if types[row_id] in CRITICAL:
            assert all(earlier < row_id for earlier in handled[:place])
            assert all(later > row_id for later in handled[place + 1 :])
    assert {row_id for row_id in types if types[row_id] in CRITICAL} <= set(handled)
    assert (queue.pending, queue.away) == ((), frozenset())
