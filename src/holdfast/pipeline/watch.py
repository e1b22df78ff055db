"""Batches in a row: until everything is read, or for ever, each when enough waits or enough time has passed."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.pipeline import plan
from holdfast.pipeline.plan import Source
from holdfast.pipeline.runner import Outcome, Runner

ENTRIES_WAITED_FOR = 200_000
"""A batch does not wait any longer when so many entries wait for it."""

EVERY_S = 60.0
POLL_S = 1.0


@dataclass(frozen=True)
class World:
    """Time, for those who wait."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def once(runner: Runner, sources: Sequence[Source], *, full: bool) -> Iterator[Outcome]:
    """Read everything that the histories have now. Where there is nothing to read, compare or compute, no batch is made."""
    standing = None if full else runner.standing(sources)
    if standing is not None:
        yield standing
        return
    targets = {source.origin: source for source in sources}
    while True:
        yield runner.run_batch(sources, full=full)
        marks = runner.last_run().marks
        if all(marks[origin].seq >= source.head.seq for origin, source in targets.items()):
            return


def every(runner: Runner, sources: Sequence[Source], every_s: float, world: World) -> Iterator[Outcome]:
    """A batch whenever there is something, and enough of it, or `every_s` have passed."""
    runner.open()
    began_at = world.clock() - every_s
    while True:
        sources = [plan.renewed(source) for source in sources]
        waiting = plan.waiting_entries(sources, runner.last_run().marks)
        is_anything = waiting > 0 or not runner.uncompared().isdisjoint(source.origin for source in sources)
        if waiting >= ENTRIES_WAITED_FOR or (is_anything and world.clock() - began_at >= every_s):
            began_at = world.clock()
            yield runner.run_batch([plan.with_acknowledged(source) for source in sources], full=False)
        else:
            world.sleep(POLL_S)
