"""Those who ask together are served together, and each gets its own answer or its own trouble."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from holdfast.relay.gathering import TOGETHER_MAX, Gathering


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
        return [2 * number for number in numbers]


class Counter:
    """Where numbers are put and waited for."""

    def __init__(self, clerk: Clerk, executor: Executor | None) -> None:
        self._gathering = Gathering(clerk.serve, self._hand_on, executor, 1)
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self.handed_on: list[list[int]] = []

    async def ask(self, number: int) -> int:
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._gathering.put(number)
        return await self._waiting[number]

    def _hand_on(self, found: Sequence[tuple[int, tuple[int] | Exception]]) -> None:
        self.handed_on.append([number for number, _ in found])
        for number, outcome in found:
            reply = self._waiting[number]
            if isinstance(outcome, Exception):
                reply.set_exception(outcome)
            else:
                reply.set_result(outcome[0])


async def asked(clerk: Clerk, numbers: Sequence[int]) -> list[int | BaseException]:
    with ThreadPoolExecutor(1) as executor:
        counter = Counter(clerk, executor)
        return list(await asyncio.gather(*map(counter.ask, numbers), return_exceptions=True))


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
            counter = Counter(clerk, executor)
            first = asyncio.create_task(counter.ask(1))
            while not clerk.piles:
                await asyncio.sleep(0)
            others = [asyncio.create_task(counter.ask(number)) for number in (2, 3)]
            await asyncio.sleep(0.01)
            clerk.may_go_on.set()
            assert await asyncio.gather(first, *others) == [2, 4, 6]
        assert clerk.piles == counter.handed_on == [[1], [2, 3]]

    asyncio.run(scene())


def test_what_breaks_one_breaks_no_other() -> None:
    good, bad, also_good = asyncio.run(asked(Clerk(), [1, -1, 3]))
    assert (good, also_good) == (2, 6)
    assert isinstance(bad, ValueError)


def test_without_threads_each_is_served_where_it_asks() -> None:
    async def scene() -> None:
        clerk = Clerk()
        counter = Counter(clerk, None)
        assert [await counter.ask(number) for number in (1, 2)] == [2, 4]
        assert clerk.piles == [[1], [2]]

    asyncio.run(scene())
