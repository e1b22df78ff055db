"""What a worker holds when it stops, dies or stalls, and who has it next; on virtual time."""

import asyncio
from collections.abc import Callable

import pytest

from holdfast.hook import outbox
from holdfast.hook.owner import Owner
from holdfast.protocol.hook_row import ATTEMPTS_MAX
from holdfast.protocol.schedule import SECOND
from tests.hook.office import Office, Scene


def test_a_worker_that_stops_finishes_what_is_in_hand_and_gives_back_the_rest(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "user_prompt_submit", "agent_stop")
    office.desk.cost_s = 2.0

    async def scene() -> None:
        async with office.at_work():
            await office.until(lambda: office.desk.tried)
        assert office.rows("status, attempts") == [("done", 1), ("pending", 0), ("pending", 0)]
        async with office.at_work():
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == [1, 2, 3]
    assert set(office.rows("attempts")) == {1}


def test_a_handler_that_will_not_end_is_left_and_its_event_tried_again(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "agent_stop")
    office.desk.gate = asyncio.Event()

    async def scene() -> None:
        async with office.at_work():
            await office.until(lambda: office.desk.tried)
        assert office.rows("status, attempts") == [("handling", 1), ("pending", 0)]
        assert office.desk.gate is not None
        office.desk.gate.set()
        began = office.clock()
        async with office.at_work():
            await office.until_all_ended()
        assert office.clock() - began < 2 * SECOND  # nobody waited for the lock to lapse

    play(scene)
    assert office.desk.of("a") == [1, 2]
    assert office.rows("attempts, last_error", "id = 1") == [(2, outbox.LOST_ERROR)]


def test_an_event_that_takes_its_worker_down_every_time_ends_as_dead(
    office: Office, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "agent_stop")
    office.desk.gate = asyncio.Event()

    async def scene() -> None:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            work = asyncio.create_task(office.worker().run())
            await office.until(lambda attempt=attempt: len(office.desk.tried) == attempt)  # type: ignore[misc]
            work.cancel()
            await asyncio.wait([work])
        assert office.desk.gate is not None
        office.desk.gate.set()
        async with office.at_work():
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == [2]
    assert office.rows("status, attempts, last_error", "id = 1") == [("dead", ATTEMPTS_MAX, outbox.LOST_ERROR)]


def stolen(office: Office, condition: str = "1 = 1", ago_s: float = 0.0) -> None:
    """Another worker, which is alive and silent, has these rows, locked some time ago."""
    locked_at = office.clock() - int(ago_s * SECOND)
    office.do(
        lambda tx: tx.run(
            f"UPDATE hook_outbox SET lock_owner = 'somebody', locked_at = {locked_at}, lock_token = lock_token + 1,"
            f" status = CASE status WHEN 'pending' THEN 'locked' ELSE status END WHERE ended_at IS NULL AND {condition}"
        )
    )


@pytest.fixture
def somebody(office: Office) -> Owner:
    """The other worker's sign of life."""
    return Owner(office.home, office.random)


def rename_somebody(office: Office, name: str) -> None:
    office.do(
        lambda tx: tx.run("UPDATE hook_outbox SET lock_owner = :name WHERE lock_owner = 'somebody'", {"name": name})
    )


def test_the_rows_of_a_living_worker_are_left_to_it_for_thirty_seconds(
    office: Office, somebody: Owner, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "agent_stop")
    office.put("b", "session_start")
    stolen(office, "id = 1")
    rename_somebody(office, somebody.name)

    async def scene() -> None:
        began = office.clock()
        async with office.at_work():
            await asyncio.sleep(28)
            assert office.desk.handled == [("b", 1)]
            await office.until_all_ended()
            assert 30 * SECOND <= office.clock() - began <= 32 * SECOND

    play(scene)
    assert office.desk.of("a") == [1, 2]
    assert office.rows("attempts") == [1, 1, 1]  # what only waited has no attempt to its name
    somebody.release()


def test_the_rows_of_a_dead_worker_are_free_at_once(office: Office, play: Callable[[Scene], None]) -> None:
    office.put("a", "session_start", "agent_stop")
    stolen(office)

    async def scene() -> None:
        began = office.clock()
        async with office.at_work():
            await office.until_all_ended()
        assert office.clock() - began < 2 * SECOND

    play(scene)
    assert office.desk.of("a") == [1, 2]


def test_a_lock_is_renewed_while_a_handler_takes_its_time(office: Office, play: Callable[[Scene], None]) -> None:
    office.put("a", "session_start", "agent_stop")
    office.desk.cost_s = 95.0

    async def scene() -> None:
        async with office.at_work(office.worker(), office.worker()):
            await office.until_all_ended()

    play(scene)
    assert [number for _, number, *_ in office.desk.tried] == [1, 2] == office.desk.of("a")


def test_rows_that_were_taken_over_are_neither_started_nor_marked(
    office: Office, somebody: Owner, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "user_prompt_submit", "agent_stop")
    office.desk.gate = asyncio.Event()

    async def scene() -> None:
        async with office.at_work() as worker:
            await office.until(lambda: office.desk.tried)
            stolen(office, "id <= 2")  # as if this worker had stalled; of its third row the lock has lapsed, too
            rename_somebody(office, somebody.name)
            assert office.desk.gate is not None
            office.desk.gate.set()
            await asyncio.sleep(12)
            assert office.desk.tried[1:] == []  # the third may not pass the second
            assert worker.statistics.counts["fenced"] >= 2
            assert office.rows("status, lock_owner", "id <= 2") == [
                ("handling", somebody.name),
                ("locked", somebody.name),
            ]
            somebody.release()
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == [1, 1, 2, 3]


def test_nothing_passes_a_row_that_another_worker_took_from_between(
    office: Office, somebody: Owner, play: Callable[[Scene], None]
) -> None:
    office.put("a", "session_start", "user_prompt_submit", "agent_stop")
    office.desk.gate = asyncio.Event()

    async def scene() -> None:
        async with office.at_work():
            await office.until(lambda: office.desk.tried)
            stolen(office, "id = 2")
            rename_somebody(office, somebody.name)
            await asyncio.sleep(11)  # the worker has renewed its locks since then, and knows
            assert office.desk.gate is not None
            office.desk.gate.set()
            await asyncio.sleep(5)
            assert office.desk.of("a") == [1]
            assert office.rows("status, lock_owner", "id = 3") == [("pending", None)]
            somebody.release()
            await office.until_all_ended()

    play(scene)
    assert office.desk.of("a") == [1, 2, 3]


def test_a_row_that_its_worker_has_forgotten_is_given_back(office: Office, play: Callable[[Scene], None]) -> None:
    async def scene() -> None:
        async with office.at_work() as worker:
            await asyncio.sleep(1)
            office.put("a", "session_start")
            office.do(
                lambda tx: tx.run(
                    f"UPDATE hook_outbox SET status = 'locked', lock_owner = '{worker._owner}', locked_at = {office.clock()}"
                )
            )
            await office.until(lambda: office.desk.handled, limit_s=35)

    play(scene)
    assert office.desk.of("a") == [1]


def test_what_dead_workers_left_behind_is_tidied_up_and_the_living_are_left_alone(office: Office) -> None:
    living = Owner(office.home, office.random)
    (office.home / "hook-workers" / "dead").touch()
    another = Owner(office.home, office.random)
    assert sorted(path.name for path in (office.home / "hook-workers").iterdir()) == sorted([living.name, another.name])
    for owner in (living, another):
        owner.release()
