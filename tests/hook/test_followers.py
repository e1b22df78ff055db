"""Followers: an adapter that fails, hangs, refuses or dies loses nothing that is final, and holds up nobody else."""

import asyncio
import itertools
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.hook import agent_sessions
from holdfast.hook.agent_service import PRUNE_S, AgentService
from holdfast.hook.agent_settings import AgentSettings
from holdfast.hook.database import SCHEMA
from holdfast.hook.followers import Adapter, Follower, Undeliverable
from holdfast.protocol.agent_event import AgentEvent, AgentKind
from holdfast.protocol.pacing import Pacing, PacingMode
from holdfast.protocol.schedule import DAY, SECOND
from holdfast.store import migrations
from holdfast.store.migrations import Schema
from holdfast.store.sqlite import SqliteEngine
from holdfast.wire.network import SystemNetwork
from tests.hook.agents import tell, told
from tests.hook.office import Office, Scene

EVERYTHING = Pacing(mode=PacingMode.OFF)


class Ear:
    """An adapter that remembers, and fails as it is told to."""

    def __init__(self, office: Office) -> None:
        self.office = office
        self.heard: list[str] = []
        self.tried: list[tuple[str, int]] = []
        self.troubles: list[Exception] = []
        self.is_deaf = False

    async def __call__(self, event: AgentEvent) -> None:
        self.tried.append((event.text, self.office.clock()))
        if self.is_deaf:
            await asyncio.Event().wait()
        await asyncio.sleep(0.001)
        if self.troubles:
            raise self.troubles.pop(0)
        self.heard.append(event.text)


def follower(
    office: Office,
    ear: Ear,
    pacing: Pacing = EVERYTHING,
    attempts_max: int | None = None,
    name: str = "ear",
    is_clock_right: Callable[[], bool] = lambda: True,
    kinds: tuple[AgentKind, ...] = (),
) -> Follower:
    office.do(lambda tx: agent_sessions.follow(tx, name))
    adapter = Adapter(name, ear, pacing, attempts_max, kinds=kinds)
    return Follower(adapter, office.store, office.clock, is_clock_right)


def position(office: Office) -> int:
    found: int = office.do(lambda tx: agent_sessions.follow(tx, "ear"))
    return found


def test_a_failure_is_repeated_later_and_later_and_nothing_passes_it(
    office: Office, play: Callable[[Scene], None]
) -> None:
    ear = Ear(office)
    ear.troubles = [OSError("not now")] * 8

    async def scene() -> None:
        following = asyncio.create_task(follower(office, ear).run())
        for number in range(3):
            tell(office, number)
        await office.until(lambda: len(ear.heard) == 3)
        following.cancel()

    play(scene)
    assert ear.heard == ["0", "1", "2"]
    times = [at for text, at in ear.tried if text == "0"]
    waits = [round((later - earlier) / 1_000_000) for earlier, later in itertools.pairwise(times)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert "not now" in office.do(agent_sessions.followers)[0]["last_error"]


def test_an_adapter_that_is_away_is_asked_less_and_less_however_much_an_agent_says(
    office: Office, play: Callable[[Scene], None]
) -> None:
    """Each output takes the place of the one that failed before it."""
    ear = Ear(office)
    ear.troubles = [TimeoutError()] * 9

    async def scene() -> None:
        following = asyncio.create_task(follower(office, ear, Pacing()).run())
        for number in range(300):
            tell(office, number, AgentKind.OUTPUT)
            await asyncio.sleep(1)
        await office.until(lambda: ear.heard[-1:] == ["299"])
        following.cancel()

    play(scene)
    waits = [round((later - earlier) / 1_000_000) for (_, earlier), (_, later) in itertools.pairwise(ear.tried[:10])]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert office.do(agent_sessions.followers)[0]["last_error"] == "TimeoutError"


def test_an_adapter_that_hangs_is_given_up_and_tried_again(office: Office, play: Callable[[Scene], None]) -> None:
    ear = Ear(office)
    ear.is_deaf = True

    async def scene() -> None:
        following = asyncio.create_task(follower(office, ear).run())
        tell(office, 1)
        await office.until(lambda: len(ear.tried) == 2)
        ear.is_deaf = False
        await office.until(lambda: ear.heard == ["1"])
        following.cancel()

    play(scene)


def test_what_is_never_taken_is_passed_over_and_counted(office: Office, play: Callable[[Scene], None]) -> None:
    ear = Ear(office)
    ear.troubles = [Undeliverable("too strange"), ValueError("no"), ValueError("no")]
    ears = follower(office, ear, attempts_max=2)

    async def scene() -> None:
        following = asyncio.create_task(ears.run())
        for number in range(4):
            tell(office, number)
        await office.until(lambda: position(office) == 4)
        following.cancel()

    play(scene)
    (seen,) = office.do(agent_sessions.followers)
    assert (seen["last_error"], seen["given_up_error"]) == ("ValueError: no", "ValueError: no")
    assert seen["last_error_at"] == seen["given_up_at"]
    assert ear.heard == ["2", "3"]
    assert (ears.counts["delivered"], ears.counts["given_up"], ears.counts["failed"]) == (2, 2, 2)
    assert office.do(agent_sessions.followers)[0]["given_up"] == 2


def test_whenever_it_dies_everything_final_is_delivered_in_order(office: Office, play: Callable[[Scene], None]) -> None:
    """It is cancelled at any moment, as by a crash, and the next one begins where the disk says."""
    ear, luck = Ear(office), random.Random(5)

    async def scene() -> None:
        number = 0
        while number < 200 or position(office) < 400:
            following = asyncio.create_task(follower(office, ear, Pacing()).run())
            for _ in range(5 if number < 200 else 0):
                tell(office, number)
                tell(office, number, AgentKind.OUTPUT, of=f"s{number % 7}")
                number += 1
            if luck.random() < 0.3:
                ear.troubles = [OSError("broken")]
            await asyncio.sleep(luck.random() * 0.02 if number < 200 else 30)
            following.cancel()
            await asyncio.wait([following])

    play(scene)
    seen = list(dict.fromkeys(text for text, _ in ear.tried))
    assert set(map(str, range(200))) <= set(seen)
    first = [ear.heard.index(str(number)) for number in range(200)]
    assert first == sorted(first)


def test_a_burst_while_an_adapter_is_away_becomes_little(office: Office, play: Callable[[Scene], None]) -> None:
    ear = Ear(office)
    ear.troubles = [OSError("away")] * 6

    async def scene() -> None:
        following = asyncio.create_task(follower(office, ear, Pacing()).run())
        for number in range(1_000):
            tell(office, number, AgentKind.OUTPUT)
        tell(office, 2_000)
        await office.until(lambda: position(office) == 1_001)
        following.cancel()

    play(scene)
    assert len(ear.heard) <= 3
    assert "2000" in ear.heard


def test_one_that_is_stuck_holds_up_no_other(office: Office, play: Callable[[Scene], None]) -> None:
    stuck, well = Ear(office), Ear(office)
    stuck.is_deaf = True

    async def scene() -> None:
        others = [follower(office, stuck), follower(office, well, name="well")]
        running = [asyncio.create_task(one.run()) for one in others]
        tell(office, 1)
        await office.until(lambda: well.heard == ["1"], limit_s=10)
        for task in running:
            task.cancel()

    play(scene)
    assert stuck.heard == []


def test_the_place_of_one_that_is_no_longer_named_is_kept_for_as_long_as_it_is_good_for_something(
    office: Office,
) -> None:
    def forgotten(later: int = 0) -> dict[str, int]:
        found: dict[str, int] = office.do(
            lambda tx: agent_sessions.forget_followers(tx, {"mouth"}, office.clock() + later)
        )
        return found

    for name in ("ear", "mouth"):
        office.do(partial(agent_sessions.follow, name=name))
    for number in range(3):
        tell(office, number)
    assert forgotten() == {}
    assert forgotten(later=8 * DAY) == {"ear": 3}
    assert [one["name"] for one in office.do(agent_sessions.followers)] == ["mouth"]


def test_what_an_adapter_never_had_is_kept_until_it_is_given_up_and_counted(
    office: Office, play: Callable[[Scene], None]
) -> None:
    """No report goes before every adapter has had it, or was said to go without it. Each is tried, however old it is."""
    ear = Ear(office)
    ear.troubles = [OSError("not now")] * 20
    ears = follower(office, ear)
    for number in range(20):
        tell(office, number, ago=8 * DAY)
    for number in range(20, 23):
        tell(office, number)
    assert office.do(lambda tx: agent_sessions.prune(tx, office.clock())) == 0

    async def scene() -> None:
        following = asyncio.create_task(ears.run())
        await office.until(lambda: len(ear.heard) == 3)
        following.cancel()

    play(scene)
    (seen,) = office.do(agent_sessions.followers)
    assert [text for text, _ in ear.tried] == [str(number) for number in range(23)]
    assert (seen["delivered"], seen["given_up"], ears.counts["given_up"]) == (3, 20, 20)
    assert (seen["given_up_error"], seen["given_up_at"] is None) == ("not delivered within 7 days", False)
    assert sum(iter(lambda: office.do(lambda tx: agent_sessions.prune(tx, office.clock())), 0)) == 20


def test_what_is_too_old_does_not_pile_up_before_an_adapter_that_is_gone(
    office: Office, play: Callable[[Scene], None]
) -> None:
    """An agent may tell more than one report a minute, which is how often such an adapter is asked."""
    ear = Ear(office)
    ear.troubles = [OSError("gone")] * 1_000
    ears = follower(office, ear)
    for number in range(100):
        tell(office, number, ago=8 * DAY)

    async def scene() -> None:
        following = asyncio.create_task(ears.run())
        await asyncio.sleep(1_800)
        following.cancel()

    play(scene)
    assert ears.counts["given_up"] == 100


def test_what_is_too_old_is_tried_though_the_adapter_was_away_with_the_relay(
    office: Office, play: Callable[[Scene], None]
) -> None:
    ear, found_right = Ear(office), asyncio.Event()
    ear.troubles = [OSError("no network")] * 40
    ears = follower(office, ear, is_clock_right=found_right.is_set)
    for number in range(100):
        tell(office, number, ago=8 * DAY)

    async def scene() -> None:
        following = asyncio.create_task(ears.run())
        await office.until(lambda: len(ear.tried) == 40)
        found_right.set()
        await office.until(lambda: len(ear.heard) == 99)
        following.cancel()

    play(scene)
    assert ears.counts["given_up"] == 1


def test_an_adapter_that_is_well_gets_what_it_waited_for_however_old_it_is(
    office: Office, play: Callable[[Scene], None]
) -> None:
    """The daemon was off for long, or the clock is wrong."""
    ear = Ear(office)
    ears = follower(office, ear)
    for number in range(1_500):
        tell(office, number, ago=8 * DAY)

    async def scene() -> None:
        following = asyncio.create_task(ears.run())
        await office.until(lambda: len(ear.heard) == 1_500)
        following.cancel()

    play(scene)
    assert ears.counts["given_up"] == 0


def test_nothing_is_given_up_for_its_age_by_a_clock_that_nobody_has_found_right(
    office: Office, play: Callable[[Scene], None]
) -> None:
    ear, found_right = Ear(office), asyncio.Event()
    ear.troubles = [OSError("not now")] * 12
    ears = follower(office, ear, is_clock_right=found_right.is_set)
    for number in range(2):
        tell(office, number, ago=8 * DAY)

    async def scene() -> None:
        following = asyncio.create_task(ears.run())
        await office.until(lambda: len(ear.tried) == 9)
        assert ears.counts["given_up"] == 0
        found_right.set()
        await office.until(lambda: ears.counts["given_up"] == 2)
        following.cancel()

    play(scene)
    assert [text for text, _ in ear.tried] == [*"000000000", "1"]


def test_nothing_is_removed_by_a_clock_that_nobody_has_found_right(
    office: Office, play: Callable[[Scene], None]
) -> None:
    found_right = asyncio.Event()
    service = AgentService(
        office.home,
        office.store,
        AgentSettings(),
        clock=office.clock,
        network=SystemNetwork(),
        environment={},
        is_clock_right=found_right.is_set,
    )
    tell(office, 1, ago=8 * DAY)
    office.do(lambda tx: agent_sessions.follow(tx, "well"))
    tell(office, 2, ago=8 * DAY)

    def kept() -> tuple[int, int]:
        return len(told(office)), len(office.do(agent_sessions.followers))

    async def scene() -> None:
        running = asyncio.create_task(service.run())
        await asyncio.sleep(2 * PRUNE_S)
        assert kept() == (2, 1)
        found_right.set()
        await office.until(lambda: kept() == (0, 0), limit_s=10)
        running.cancel()

    play(scene)


def test_what_nobody_asked_for_is_neither_sent_nor_counted_nor_paced(
    office: Office, play: Callable[[Scene], None]
) -> None:
    ear = Ear(office)
    ears = follower(office, ear, Pacing(mode=PacingMode.STRICT, per_minute=1), kinds=(AgentKind.ERROR,))
    began = office.clock()

    async def scene() -> None:
        following = asyncio.create_task(ears.run())
        for number in range(50):
            tell(office, number)
            tell(office, number, AgentKind.OUTPUT)
        tell(office, 50, AgentKind.ERROR)
        tell(office, 51)
        await office.until(lambda: position(office) == 102)
        following.cancel()

    play(scene)
    assert [text for text, at in ear.tried if at - began < 20 * SECOND] == ["50"]
    assert ears.counts == {"delivered": 1, "coalesced": 0, "failed": 0, "given_up": 0}


def test_what_waits_in_memory_for_a_broken_adapter_is_given_up_in_time_too(
    office: Office, play: Callable[[Scene], None]
) -> None:
    ear = Ear(office)
    ear.troubles = [OSError("broken")] * 5
    ears = follower(office, ear)

    async def scene() -> None:
        following = asyncio.create_task(ears.run())
        tell(office, 1, ago=7 * DAY - 10 * SECOND)  # too old after the fourth attempt
        tell(office, 2)
        await office.until(lambda: ear.heard == ["2"])
        following.cancel()

    play(scene)
    assert [text for text, _ in ear.tried].count("1") == 4
    assert (ears.counts["given_up"], ears.counts["delivered"]) == (1, 1)


def test_attempts_at_a_report_that_became_too_old_are_not_charged_to_the_next(
    office: Office, play: Callable[[Scene], None]
) -> None:
    """How long the adapter is waited for goes on growing: it is the same adapter that does not answer."""
    ear = Ear(office)
    ear.troubles = [OSError("broken")] * 9
    ears = follower(office, ear, attempts_max=5)

    async def scene() -> None:
        following = asyncio.create_task(ears.run())
        tell(office, 1, ago=7 * DAY - 10 * SECOND)  # too old after the fourth attempt
        tell(office, 2)
        tell(office, 3)
        await office.until(lambda: ear.heard == ["3"])
        following.cancel()

    play(scene)
    assert [text for text, _ in ear.tried] == [*"1111", *"22222", "3"]
    assert ears.counts["given_up"] == 2
    waits = [round((later - earlier) / SECOND) for (_, earlier), (_, later) in itertools.pairwise(ear.tried)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 0]


def test_what_is_wrong_with_an_adapter_now_is_told_whatever_was_wrong_before(
    office: Office, play: Callable[[Scene], None]
) -> None:
    """Neither an earlier error nor a report that became too old stands in the way of what can be mended."""
    ear = Ear(office)
    ear.troubles = [*[OSError("no route")] * 3, *[PermissionError("401")] * 9]
    seen: list[tuple[str, str | None]] = []

    async def scene() -> None:
        following = asyncio.create_task(follower(office, ear).run())
        tell(office, 1, ago=7 * DAY - 10 * SECOND)  # too old after the fourth attempt
        tell(office, 2)
        while len(ear.tried) < 8:
            await asyncio.sleep(0.5)
            (told,) = office.do(agent_sessions.followers)
            seen.append((told["last_error"], told["given_up_error"]))
        following.cancel()

    play(scene)
    assert list(dict.fromkeys(seen)) == [
        ("OSError: no route", None),
        ("PermissionError: 401", None),
        ("PermissionError: 401", "not delivered within 7 days"),
    ]


def test_an_error_that_stays_the_same_is_written_down_once_until_something_is_delivered(
    office: Office, play: Callable[[Scene], None]
) -> None:
    ear = Ear(office)
    at: list[int] = []

    async def scene() -> None:
        following = asyncio.create_task(follower(office, ear).run())
        for number in range(2):
            ear.troubles = [OSError("no route")] * 3
            tell(office, number)
            await office.until(partial(is_heard, number))
            at.append(office.do(agent_sessions.followers)[0]["last_error_at"])
        following.cancel()

    def is_heard(number: int) -> bool:
        return ear.heard[-1:] == [str(number)]

    play(scene)
    firsts = [dict(reversed(ear.tried))[word] for word in "01"]
    assert [(later - earlier) // SECOND for earlier, later in zip(firsts, at, strict=True)] == [0, 0]


def test_why_an_adapter_went_without_something_is_taken_over_where_it_is_known(tmp_path: Path) -> None:
    before = SCHEMA.migrations[: [step.name for step in SCHEMA.migrations].index("agent_given_up_error")]
    engine = SqliteEngine(tmp_path / "hooks.db")
    migrations.migrate(engine, Schema(program=SCHEMA.program, migrations=before), lambda: 0)
    with engine.write() as transaction:
        for name, given_up_at in (("failed since", 5), ("went without", 7), ("without nothing", None)):
            transaction.run(
                "INSERT INTO agent_follower (name, position, given_up_at, last_error, last_error_at)"
                " VALUES (:name, 1, :given_up_at, 'no route', 7)",
                {"name": name, "given_up_at": given_up_at},
            )
    migrations.migrate(engine, SCHEMA, lambda: 0)
    with engine.read() as transaction:
        found = {one["name"]: one["given_up_error"] for one in agent_sessions.followers(transaction)}
    engine.close()
    assert found == {
        "failed since": "it is not known any more why",
        "went without": "no route",
        "without nothing": None,
    }
