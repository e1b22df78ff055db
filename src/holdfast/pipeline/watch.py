"""Batches in a row: until everything is read, or for ever, each when enough waits or enough time has passed."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.pipeline import plan
from holdfast.pipeline.outcome import Outcome
from holdfast.pipeline.plan import Mark, Source
from holdfast.pipeline.runner import Runner

ENTRIES_WAITED_FOR = 200_000
"""So many unread entries start a batch before its time."""

POLL_S = 1.0
"""How long to wait before the histories are asked again for their heads."""


@dataclass(frozen=True)
class World:
    """The clock and the sleep of `every`, which tests replace."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def once(runner: Runner, sources: Sequence[Source], *, full: bool) -> Iterator[Outcome]:
    """Read everything that the histories have now. Where there is nothing to read, compare or compute, no batch is made."""
    standing = None if full else runner.standing(sources)
    if standing is not None:
        yield standing
        return
    while True:
        yield runner.run_batch(sources, full=full)
        if runner.has_read(sources):  # a resumed batch reads only what was planned before the interruption
            return


def every(runner: Runner, sources: Sequence[Source], every_s: float, world: World) -> Iterator[Outcome]:
    """Run a batch whenever there is work for one, and either many entries wait or `every_s` have passed."""
    runner.open()
    began_at = world.clock() - every_s
    # How many entries waited when the lake could read none of them, as of a log that was rewritten.
    unreadable = 0
    while True:
        sources = plan.renewed(sources)
        waiting = plan.waiting_entries(sources, runner.last_run().marks)
        is_due = waiting - unreadable >= ENTRIES_WAITED_FOR or world.clock() - began_at >= every_s
        if is_due and _may_be_anything(runner, sources):
            began_at = world.clock()
            if runner.standing(sources) is None:
                unreadable = 0
                yield runner.run_batch(sources, full=False)
                continue
            unreadable = waiting
        world.sleep(POLL_S)


def _may_be_anything(runner: Runner, sources: Sequence[Source]) -> bool:
    """Whether a batch may read, compare or find something; that a log cannot be read any further is found only once."""
    marks, uncompared = runner.last_run().marks, runner.uncompared()
    return any(_is_elsewhere(source, marks.get(source.origin)) or source.origin in uncompared for source in sources)


def _is_elsewhere(source: Source, mark: Mark | None) -> bool:
    """Whether a log does not end where the lake stands."""
    if mark is None:
        return source.head.seq > 0
    return (source.head.log_id, source.head.seq) != (mark.log_id, mark.seq)
