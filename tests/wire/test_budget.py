"""Bytes that are shared: never more than there are, in turn, and given back by those who stop waiting."""

import asyncio

from holdfast.wire.budget import Budget


def test_what_does_not_fit_now_is_not_taken() -> None:
    budget = Budget(10)
    assert budget.take_now(6)
    assert not budget.take_now(5)
    assert budget.take_now(4)
    assert budget.taken == 10


def test_one_that_is_larger_than_everything_passes_alone() -> None:
    budget = Budget(10)
    assert budget.take_now(11)
    assert not budget.take_now(1)


def test_those_who_wait_are_served_in_turn_and_a_small_one_does_not_overtake() -> None:
    async def test() -> None:
        budget = Budget(10)
        assert budget.take_now(10)
        order: list[str] = []

        async def take(name: str, size: int) -> None:
            await budget.take(size)
            order.append(name)

        waiting = [asyncio.create_task(take("large", 8)), asyncio.create_task(take("small", 1))]
        await asyncio.sleep(0)
        assert not budget.take_now(0)
        budget.give(3)
        await asyncio.sleep(0)
        assert order == []
        budget.give(7)
        await asyncio.gather(*waiting)
        assert (order, budget.taken) == (["large", "small"], 9)

    asyncio.run(test())


def test_one_who_stops_waiting_lets_the_next_one_through_and_keeps_nothing() -> None:
    async def test() -> None:
        budget = Budget(10)
        assert budget.take_now(8)
        impatient = asyncio.create_task(budget.take(5))
        patient = asyncio.create_task(budget.take(2))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        await asyncio.wait_for(patient, 60)
        budget.give(10)
        granted = asyncio.create_task(budget.take(10))
        assert budget.take_now(10)
        await asyncio.sleep(0)
        budget.give(10)  # the turn is given, and in the same moment its owner is cancelled
        granted.cancel()
        await asyncio.gather(granted, return_exceptions=True)
        assert budget.taken == 0

    asyncio.run(test())
