"""Those who ask together are served together, and each gets its own answer or its own trouble."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.relay.gathering import TOGETHER_MAX, Gathering
from holdfast.store import faults

FULL = 1_000_003  # for this one the disk has no room


class Clerk:
    """Doubles numbers, a pile at a time; remembers the piles."""

    def __init__(self) -> None:
        self.piles: list[list[int]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def serve(self, numbers: Sequence[int]) -> list[int]:
        self.piles.append(list(numbers))
        self.may_go_on.wait(60)
        if any(number < 0 for number in numbers):
            raise ValueError(f"cannot be doubled: {numbers}")
        if FULL in numbers:
            raise faults.DiskFull("/somewhere")
        return [2 * number for number in numbers]


async def asked(clerk: Clerk, numbers: Sequence[int], at_once: int = 1) -> list[int | BaseException]:
    with ThreadPoolExecutor(at_once) as executor:
        gathering = Gathering(clerk.serve, executor, at_once)
        return list(await asyncio.gather(*map(gathering.ask, numbers), return_exceptions=True))


def test_those_who_ask_in_one_turn_are_one_pile() -> None:
    clerk = Clerk()
    assert asyncio.run(asked(clerk, range(50))) == [2 * number for number in range(50)]
    assert clerk.piles == [list(range(50))]


def test_a_pile_has_a_limit() -> None:
    clerk = Clerk()
    count = 2 * TOGETHER_MAX + 1
    assert asyncio.run(asked(clerk, range(count))) == [2 * number for number in range(count)]
    assert [len(pile) for pile in clerk.piles] == [TOGETHER_MAX, TOGETHER_MAX, 1]


def test_those_who_come_meanwhile_are_the_next_pile() -> None:
    async def scene() -> None:
        clerk = Clerk()
        clerk.may_go_on.clear()
        with ThreadPoolExecutor(1) as executor:
            gathering = Gathering(clerk.serve, executor, 1)
            first = asyncio.create_task(gathering.ask(1))
            while not clerk.piles:
                await asyncio.sleep(0)
            others = [asyncio.create_task(gathering.ask(number)) for number in (2, 3)]
            await asyncio.sleep(0.01)
            clerk.may_go_on.set()
            assert await asyncio.gather(first, *others) == [2, 4, 6]
        assert clerk.piles == [[1], [2, 3]]

    asyncio.run(scene())


def test_what_breaks_one_breaks_no_other() -> None:
    good, bad, also_good = asyncio.run(asked(Clerk(), [1, -1, 3]))
    assert (good, also_good) == (2, 6)
    assert isinstance(bad, ValueError)


def test_a_fault_of_the_store_is_everybodys() -> None:
    clerk = Clerk()
    found = asyncio.run(asked(clerk, [1, FULL, 3]))
    assert [type(one) for one in found] == [faults.DiskFull] * 3
    assert len(set(map(id, found))) == 3  # each his own: an exception that is raised twice tells of both
    assert len(clerk.piles) == 1


def test_one_who_leaves_costs_the_others_nothing() -> None:
    async def scene() -> None:
        clerk = Clerk()
        clerk.may_go_on.clear()
        with ThreadPoolExecutor(1) as executor:
            gathering = Gathering(clerk.serve, executor, 1)
            leaving, staying = (asyncio.create_task(gathering.ask(number)) for number in (1, 2))
            while not clerk.piles:
                await asyncio.sleep(0)
            leaving.cancel()
            clerk.may_go_on.set()
            assert await staying == 4
            with pytest.raises(asyncio.CancelledError):
                await leaving

    asyncio.run(scene())


def test_without_threads_each_is_served_where_it_asks() -> None:
    async def scene() -> None:
        clerk = Clerk()
        gathering = Gathering(clerk.serve, None, 1)
        assert [await gathering.ask(number) for number in (1, 2)] == [2, 4]
        assert clerk.piles == [[1], [2]]

    asyncio.run(scene())
