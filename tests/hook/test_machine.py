"""Any number of workers, killed at any moment, with any failures and little room: what was promised holds in every schedule.

Virtual time runs the real worker on a real database; hypothesis chooses what happens when. A plain model says what must
come of it: every critical event of a session handled, in order; every bursty one handled or coalesced; nothing twice at once.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st

from holdfast.hook.settings import Settings
from holdfast.hook.worker import Worker
from holdfast.protocol.hook_queue import Item
from tests.hook.office import Office
from tests.hook.virtual import VirtualLoop, run

TYPES = ("session_start", "agent_stop", "tool_use", "tool_done", "progress")
SESSIONS = ("a", "b", "c")


class Plan(msgspec.Struct, frozen=True):
    """What happens: events (session, type, pause before it), failures by event, and when which worker is killed."""

    events: list[tuple[str, str, float]]
    failures: dict[int, int]
    kills: list[tuple[float, int]]
    workers: int
    pending_max: int
    batch_rows: int
    guarded: bool
    cost_s: float
    latency_s: float  # of the disk, before and after each commit
    is_forgetful: bool  # locks are not renewed and lapse while rows wait in memory, though never in a handler's hands


ROOMY = 32
PAUSES = st.sampled_from([0.0, 0.0, 0.0, 0.3, 1.1])
PLANS = st.builds(
    Plan,
    events=st.lists(st.tuples(st.sampled_from(SESSIONS), st.sampled_from(TYPES), PAUSES), min_size=1, max_size=25),
    failures=st.dictionaries(st.integers(0, 24), st.integers(1, 3), max_size=5),
    kills=st.lists(st.tuples(st.floats(0.0, 8.0), st.integers(0, 1)), max_size=4),
    workers=st.integers(1, 2),
    pending_max=st.integers(1, 5) | st.just(ROOMY),
    batch_rows=st.integers(1, 6),
    guarded=st.booleans(),
    cost_s=st.sampled_from([0.0, 0.01, 0.7]),
    latency_s=st.sampled_from([0.0, 0.02, 0.15]),
    is_forgetful=st.booleans(),
)
FORGETFUL: dict[str, Any] = {"lock_cutoff_s": 1.0, "renew_s": 10_000.0, "poll_s": 0.4}


class World:
    """A plan, played on one home."""

    def __init__(self, plan: Plan, office: Office) -> None:
        self.plan = plan
        self.office = office
        self.numbers: dict[tuple[str, int], str] = {}
        self.workers: list[Worker] = []
        office.desk.cost_s = plan.cost_s
        office.store.latency_s = plan.latency_s

    async def play(self) -> None:
        works = [asyncio.create_task(self._keep_at_work(number)) for number in range(self.plan.workers)]
        await self._feed()
        await self.office.until_all_ended()
        for work in works:
            work.cancel()
        await asyncio.wait(works)

    async def _feed(self) -> None:
        counts = dict.fromkeys(SESSIONS, 0)
        for place, (session, event_type, pause_s) in enumerate(self.plan.events):
            await asyncio.sleep(pause_s)
            counts[session] += 1
            which = session, counts[session]
            self.numbers[which] = event_type
            self.office.desk.errors[which] = [RuntimeError("no")] * self.plan.failures.get(place, 0)
            self.office.put(session, event_type)

    async def _keep_at_work(self, number: int) -> None:
        """A worker that is killed where the plan says so, and another one after it."""
        settings = Settings(
            pending_max=self.plan.pending_max,
            batch_rows=self.plan.batch_rows,
            guarded=self.plan.guarded,
            **(FORGETFUL if self.plan.is_forgetful else {}),
        )
        for at, victim in sorted(self.plan.kills):
            if victim != number:
                continue
            work = asyncio.create_task(self._worker(settings).run())
            await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
            work.cancel()  # whatever it had in memory is gone, and nothing is marked
            await asyncio.wait([work])
        await self._worker(settings).run()

    def _worker(self, settings: Settings) -> Worker:
        self.workers.append(self.office.worker(settings=settings))
        return self.workers[-1]

    def check(self) -> None:
        desk = self.office.desk
        for session in SESSIONS:
            events = {number: kind for (name, number), kind in self.numbers.items() if name == session}
            critical = [number for number, kind in events.items() if Item(1, kind).is_critical]
            first = list(dict.fromkeys(desk.of(session)))
            assert [number for number in first if number in critical] == critical
            for number in critical:
                place = first.index(number)
                assert all(earlier < number for earlier in first[:place])
                assert all(later > number for later in first[place + 1 :])
        ended = self.office.rows("session_id, event_type, status, attempts")
        assert len(ended) == len(self.numbers)
        for _, event_type, status, attempts in ended:
            assert status == "done" or (status == "coalesced" and not Item(1, event_type).is_critical)
            assert attempts <= 3 + 1 + len(self.plan.kills)
        assert all(len(ids) == 1 for ids in desk.event_ids.values())
        if len(self.workers) == 1:  # nobody can have taken anything from it
            counts = self.workers[0].statistics.counts
            assert counts["fenced"] == 0
            assert self.plan.pending_max < ROOMY or counts["sent_back"] == 0


@settings_of_test(max_examples=80, deadline=None)
@given(plan=PLANS)
def test_whatever_happens_when_critical_events_are_handled_in_order_and_nothing_is_lost(plan: Plan) -> None:
    loop = VirtualLoop()
    with tempfile.TemporaryDirectory() as folder:
        office = Office(Path(folder), loop)
        world = World(plan, office)
        run(world.play(), loop)
        world.check()
        office.close()
