"""Batches in a row: until everything is read, or for ever, each when enough waits or enough time has passed."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.pipeline import plan
from holdfast.pipeline.plan import Mark, Source
from holdfast.pipeline.runner import Outcome, Runner

ENTRIES_WAITED_FOR = 200_000
"""A batch does not wait any longer when so many entries wait for it."""

POLL_S = 1.0
"""How often histories are asked where they stand."""


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
    while True:
        yield runner.run_batch(sources, full=full)
        marks = runner.last_run().marks  # of a batch that was taken up again, those of the sources that it had
        if all(_is_read(source, marks.get(source.origin)) for source in sources):
            return


def every(runner: Runner, sources: Sequence[Source], every_s: float, world: World) -> Iterator[Outcome]:
    """A batch whenever there is something, and enough of it, or `every_s` have passed."""
    runner.open()
    began_at = world.clock() - every_s
    while True:
        sources = [plan.renewed(source) for source in sources]
        waiting = plan.waiting_entries(sources, runner.last_run().marks)
        is_anything = (
            waiting > 0
            or not runner.uncompared().isdisjoint(source.origin for source in sources)
            or _is_anything_lost(runner, sources)
        )
        if waiting >= ENTRIES_WAITED_FOR or (is_anything and world.clock() - began_at >= every_s):
            began_at = world.clock()
            yield runner.run_batch([plan.with_acknowledged(source) for source in sources], full=False)
        else:
            world.sleep(POLL_S)


def _is_read(source: Source, mark: Mark | None) -> bool:
    return mark is not None and mark.log_id == source.head.log_id and mark.seq >= source.head.seq


def _is_anything_lost(runner: Runner, sources: Sequence[Source]) -> bool:
    """Whether a log became shorter or another one, and no batch has told it yet: no entry waits then, and something is to be said."""
    marks = runner.last_run().marks
    known = [(source.head, marks[source.origin]) for source in sources if source.origin in marks]
    is_odd = any(head.log_id != mark.log_id or head.seq < mark.seq for head, mark in known)
    return is_odd and runner.standing(sources) is None
