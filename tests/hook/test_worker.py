"""The worker on virtual time: order, retries, bursts, room, lag."""

import asyncio
import itertools
import json
from collections.abc import Callable

import pytest

from holdfast.hook import outbox
from holdfast.hook.event import HookEvent
from holdfast.hook.settings import Settings
from holdfast.protocol.hook_row import ATTEMPTS_MAX
from holdfast.protocol.refusal import Refusal, Refused
from holdfast.protocol.schedule import SECOND
from tests.hook.office import Office, Scene


def test_what_is_stored_is_handled_in_order_and_done(office: Office, play: Callable[[Scene], None]) -> None:
    office.put("a", "session_start", "user_prompt_submit", "agent_stop")
    office.put("b", "session_start")

    async def scene() -> None:
        async with office.at_work():
            await office.until_all_ended()
            office.put("a", "error")
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == [1, 2, 3, 4]
    assert office.desk.of("b") == [1]
    assert set(office.rows("status")) == {"done"}
    assert office.rows("attempts") == [1] * 5


def test_of_two_bursts_the_newer_is_handled_and_the_older_says_so(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "tool_done", "tool_done")

    async def scene() -> None:
        async with office.at_work() as worker:
            await office.until_all_ended()
            assert worker.statistics.counts["coalesced"] == 1

    play(scene)
    assert office.desk.of("a") == [2]
    assert office.rows("status, last_error") == [("coalesced", "coalesced:tool_done"), ("done", None)]


def test_bursts_coalesce_while_an_earlier_event_is_in_hand(office: Office, play: Callable[[Scene], None]) -> None:
    office.desk.gate = asyncio.Event()
    office.put("a", "agent_stop")

    async def scene() -> None:
        async with office.at_work():
            await office.until(lambda: office.desk.tried)
            office.put("a", "tool_use", "tool_use", "tool_use")
            await office.until(lambda: office.rows("status").count("coalesced") == 2, limit_s=5)
            assert office.desk.gate is not None
            office.desk.gate.set()
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == [1, 4]


def test_a_critical_event_between_bursts_keeps_them_apart(office: Office, play: Callable[[Scene], None]) -> None:
    office.put("a", "tool_use", "user_prompt_submit", "tool_use")

    async def scene() -> None:
        async with office.at_work():
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == [1, 2, 3]


def test_without_room_a_burst_behind_critical_events_is_dropped(office: Office, play: Callable[[Scene], None]) -> None:
    office.put("a", "session_start", "user_prompt_submit", "tool_use")

    async def scene() -> None:
        async with office.at_work(office.worker(settings=Settings(pending_max=2))):
            await office.until_all_ended()

    play(scene)
    assert office.rows("status, last_error") == [("done", None), ("done", None), ("coalesced", "coalesced:tool_use")]


def test_with_a_reserve_bursts_give_way_and_nothing_goes_back(office: Office, play: Callable[[Scene], None]) -> None:
    office.put("a", "tool_use", "tool_done", "session_start", "user_prompt_submit", "agent_stop")
    guarded = Settings(pending_max=4, guarded=True, critical_reserve=2, claim_high=4)

    async def scene() -> None:
        async with office.at_work(office.worker(settings=guarded)) as worker:
            await office.until_all_ended()
            assert worker.statistics.counts["sent_back"] == 0

    play(scene)
    assert office.desk.of("a") == [2, 3, 4, 5]
    assert office.rows("status", "status = 'coalesced'") == ["coalesced"]


def test_a_critical_event_without_room_goes_back_and_keeps_its_place(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.desk.gate = asyncio.Event()
    office.put("a", *["agent_stop"] * 9)

    async def scene() -> None:
        async with office.at_work(office.worker(settings=Settings(pending_max=2))) as worker:
            await office.until(lambda: worker.statistics.counts["sent_back"] >= 7)
            ((error, attempts, status, next_attempt_at),) = office.rows(
                "last_error, attempts, status, next_attempt_at", "id = 9"
            )
            assert (error, attempts, status) == ("backpressure:session_queue_full", 0, "pending")
            assert 0 < next_attempt_at - office.clock() <= SECOND
            office.put("a", "session_start")  # and must not overtake them
            assert office.desk.gate is not None
            office.desk.gate.set()
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == list(range(1, 11))
    assert set(office.rows("attempts")) == {1}


def test_a_session_that_has_too_much_is_not_claimed_from_until_it_has_little(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.desk.gate = asyncio.Event()
    office.put("a", *["agent_stop"] * 60)
    office.put("b", "agent_stop")

    async def scene() -> None:
        async with office.at_work(office.worker(settings=Settings(guarded=True))) as worker:
            await office.until(lambda: len(office.desk.tried) == 2)
            await asyncio.sleep(10)
            assert worker.statistics.counts["sent_back"] == 0
            assert len(office.rows("id", "status = 'locked'")) == 24 + 1 - 1  # twenty-five were claimed at once
            assert office.desk.gate is not None
            office.desk.gate.set()
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == list(range(1, 61))


def test_a_failure_is_retried_after_a_second_then_two_then_four(office: Office, play: Callable[[Scene], None]) -> None:
    office.put("a", "session_start", "agent_stop")
    office.desk.errors["a", 1] = [RuntimeError("no"), RuntimeError("still no"), RuntimeError("not yet")]

    async def scene() -> None:
        async with office.at_work():
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == [1, 2]
    times = [at / SECOND for _, number, _, at in office.desk.tried if number == 1]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert [int(wait) for wait in waits] == [1, 2, 4]
    assert all(wait - int(wait) <= 1.1 for wait in waits)  # a poll may come a second late
    assert office.rows("attempts, last_error", "id = 1") == [(4, "RuntimeError: not yet")]
    assert office.desk.event_ids["a", 1] == set(office.rows("event_id", "id = 1"))


def test_a_row_that_waits_for_its_retry_holds_its_session_and_no_other(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "agent_stop", "tool_use")
    office.desk.errors["a", 1] = [RuntimeError("no")] * 6
    office.put("b", *["agent_stop"] * 40)

    async def scene() -> None:
        async with office.at_work():
            await office.until(lambda: len(office.desk.of("b")) == 40)
            assert office.desk.of("a") == []
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == [1, 2, 3]
    assert {number for name, number, *_ in office.desk.tried[:8] if name == "a"} == {1}


def test_poison_is_dead_after_twenty_attempts_and_its_session_goes_on(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "agent_stop")
    office.desk.errors["a", 1] = [RuntimeError(f"no {number}") for number in range(1, 30)]

    async def scene() -> None:
        async with office.at_work() as worker:
            await office.until_all_ended()
            assert (worker.statistics.counts["dead"], worker.statistics.counts["processed"]) == (1, 2)

    play(scene)
    assert office.rows("status, attempts, last_error") == [
        ("dead", ATTEMPTS_MAX, "RuntimeError: no 20"),
        ("done", 1, None),
    ]


@pytest.mark.parametrize(
    ("error", "status", "attempts"),
    [
        (ValueError("session not found"), "dead", 1),
        (json.JSONDecodeError("Extra data", "{}{}", 2), "dead", 1),
        (Refused(Refusal.NOT_A_MEMBER, "npub"), "dead", 1),
        (json.JSONDecodeError("Expecting value", "", 0), "done", 2),
        (Refused(Refusal.RATE_LIMITED, "60 a minute"), "done", 2),
    ],
)
def test_a_failure_that_no_repetition_mends_ends_at_once(
    error: Exception, status: str, attempts: int, office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "agent_stop")
    office.desk.errors["a", 1] = [error]

    async def scene() -> None:
        async with office.at_work():
            await office.until_all_ended()

    play(scene)
    assert office.rows("status, attempts", "id = 1") == [(status, attempts)]
    assert str(error) in office.rows("last_error", "id = 1")[0]
    assert office.rows("status", "id = 2") == ["done"]


@pytest.mark.parametrize("payload", ["{", "{}{}", "[1]", "", "nul"])
def test_a_payload_that_nobody_can_read_never_gets_to_a_handler(
    payload: str, office: Office, play: Callable[[Scene], None]
) -> None:
    office.do(lambda tx: outbox.take_in(tx, [office.record("a", "session_start", payload)]))
    office.put("a", "agent_stop")

    async def scene() -> None:
        async with office.at_work():
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == [2]
    ((status, attempts, error),) = office.rows("status, attempts, last_error", "id = 1")
    assert (status, attempts) == ("dead", 0)
    assert error


def test_a_burst_of_two_hundred_critical_events_is_handled_in_time(
    office: Office, play: Callable[[Scene], None]
) -> None:
    async def scene() -> None:
        async with office.at_work(office.worker(settings=Settings(pending_max=256))) as worker:
            await asyncio.sleep(3)
            for _ in range(20):
                office.put("a", *["agent_stop"] * 10)
                worker.wake()
                await asyncio.sleep(0)
            await office.until_all_ended()
            found = worker.statistics.lag
            assert found.samples == 200
            assert found.p95 < 1 * SECOND
            assert found.p99 < 3 * SECOND
            assert worker.statistics.counts["coalesced"] == 0

    play(scene)
    assert office.desk.of("a") == list(range(1, 201))


def test_an_event_that_nobody_wakes_the_worker_for_is_found_within_a_second(
    office: Office, play: Callable[[Scene], None]
) -> None:
    async def scene() -> None:
        async with office.at_work():
            await asyncio.sleep(7.3)
            office.put("a", "session_start")
            await office.until_all_ended()

    play(scene)
    ((received_at, ended_at),) = office.rows("received_at, ended_at")
    assert ended_at - received_at <= 1.1 * SECOND


def test_rows_of_one_moment_keep_the_order_in_which_they_were_stored(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", *["agent_stop", "user_prompt_submit"] * 20)
    assert len(set(office.rows("received_at"))) == 1

    async def scene() -> None:
        async with office.at_work():
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == list(range(1, 41))


def test_a_clock_that_was_set_back_keeps_nobody_waiting(office: Office, play: Callable[[Scene], None]) -> None:
    office.put("a", "session_start")
    office.do(lambda tx: tx.run(f"UPDATE hook_outbox SET next_attempt_at = next_attempt_at + {3 * 3600 * SECOND}"))

    async def scene() -> None:
        async with office.at_work():
            await office.until(lambda: office.desk.handled, limit_s=5)

    play(scene)


@pytest.mark.parametrize("offset_ms", range(0, 1500, 50))
def test_an_event_that_comes_while_another_goes_back_is_not_said_to_have_found_no_room(
    offset_ms: int, office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start")
    office.desk.gate = asyncio.Event()
    office.desk.errors["a", 1] = [RuntimeError("no")]

    async def scene() -> None:
        async with office.at_work() as worker:
            await office.until(lambda: office.desk.tried)
            office.store.latency_s = 0.2
            office.put("a", "agent_stop")
            worker.wake()
            await asyncio.sleep(offset_ms / 1000)
            assert office.desk.gate is not None
            office.desk.gate.set()
            await office.until_all_ended()
            counts = worker.statistics.counts
            assert (counts["sent_back"], counts["fenced"], counts["failed"]) == (0, 0, 1)

    play(scene)
    assert office.desk.of("a") == [1, 2]
    assert office.rows("last_error", "id = 2") == [None]


def test_an_event_that_ended_elsewhere_while_it_waited_holds_up_nobody(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "agent_stop")
    office.desk.errors["a", 1] = [RuntimeError("no")] * 9

    async def scene() -> None:
        async with office.at_work():
            await office.until(lambda: office.rows("attempts", "id = 1 AND status = 'pending'") == [3])
            office.do(lambda tx: tx.run("UPDATE hook_outbox SET status = 'done', ended_at = 1 WHERE id = 1"))
            await office.until(lambda: office.desk.of("a") == [2], limit_s=3)

    play(scene)


def test_a_session_without_events_is_forgotten(office: Office, play: Callable[[Scene], None]) -> None:
    office.put("a", "session_start")
    office.put("b", "session_start")

    async def scene() -> None:
        async with office.at_work() as worker:
            await office.until_all_ended()
            assert worker.sessions == 2
            await asyncio.sleep(6)
            assert worker.sessions == 0
            office.put("a", "agent_stop")
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == [1, 2]


def test_a_handler_in_which_something_was_cancelled_has_failed(office: Office, play: Callable[[Scene], None]) -> None:
    office.put("a", "session_start", "agent_stop")
    tried: list[tuple[int, int]] = []

    async def handle(event: HookEvent) -> None:
        tried.append((event.payload["n"], event.attempts))
        if len(tried) == 1:
            raise asyncio.CancelledError

    async def scene() -> None:
        async with office.at_work(office.worker(handle)):
            await office.until_all_ended()

    play(scene)
    assert tried == [(1, 1), (1, 2), (2, 1)]


def test_a_handler_that_never_ends_is_cancelled_and_its_event_tried_again(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "agent_stop")
    begun: list[int] = []

    async def endless(event: HookEvent) -> None:
        begun.append(event.attempts)
        if event.attempts == 1 and event.event_type == "session_start":
            await asyncio.Event().wait()

    async def scene() -> None:
        async with office.at_work(office.worker(endless)):
            await office.until_all_ended()

    play(scene)
    assert begun == [1, 2, 1]
    assert office.rows("status, last_error") == [("done", "TimeoutError: "), ("done", None)]


@pytest.mark.parametrize("gate", [True, False])
def test_a_database_that_never_has_time_again_keeps_no_worker_from_ending(
    gate: bool, office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "agent_stop")
    if gate:
        office.desk.gate = asyncio.Event()
    seen: list[bool] = []

    async def scene() -> None:
        worker = office.worker(report=lambda drafts: asyncio.sleep(0))
        work = asyncio.create_task(worker.run())
        await asyncio.sleep(1)
        seen.append(worker.is_failing)
        office.store.busy = 1_000_000_000
        await asyncio.sleep(3)
        seen.append(worker.is_failing)
        worker.stop()
        async with asyncio.timeout(60):
            await work
        office.store.busy = 0
        office.desk.gate = None
        async with office.at_work() as next_one:
            await office.until_all_ended()
            seen.append(next_one.is_failing)

    play(scene)
    assert seen == [False, True, False]
    assert office.desk.of("a") == [1, 2]
