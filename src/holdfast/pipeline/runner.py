"""The runner: plans batch after batch over what the histories gained, and has each one's tables written in order.

A batch commits `history` first and `run` last. A batch that was interrupted after its history is resumed with the plan it had, and
tables that already have it are left as they are; one that was interrupted before is planned again.
"""

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from deltalake.transaction import Transaction

from holdfast.pipeline import (
    backfill,
    breaches,
    certificate,
    conclusion,
    outcome,
    plan,
    proof,
    records,
    session,
    taking,
    times,
    upkeep,
)
from holdfast.pipeline.conclusion import Conclusion
from holdfast.pipeline.inputs import Inputs, entries
from holdfast.pipeline.lake import BatchUnderWay, Lake, LakeOther, OffsetGap
from holdfast.pipeline.outcome import Outcome
from holdfast.pipeline.plan import Mark, Plan, Source
from holdfast.pipeline.shelf import Run, Shelf
from holdfast.pipeline.side_by_side import do_each
from holdfast.pipeline.state import Reading
from holdfast.pipeline.table import Batch, Range, Table, Writing, needs_of
from holdfast.pipeline.taking import Piece
from holdfast.store import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VACUUM_EVERY_BATCHES = 100

TABLES_AT_ONCE = min(4, os.cpu_count() or 1)
"""How many tables of a small batch are computed side by side."""

PLAN_FILE = "plan.json"

LINK = "link"
"""The passing table that is written while the history is taken over, and not by a function of its own."""

Tell = Callable[[str], None]


class Runner:
    """Runs batches on one lake."""

    def __init__(
        self,
        open_spark: "Callable[[], SparkSession]",
        lake: Lake,
        tables: Mapping[str, Table],
        *,
        batch_entries_max: int = plan.BATCH_ENTRIES_MAX,
        tables_at_once: int = TABLES_AT_ONCE,
        tell: Tell = lambda what: None,
    ) -> None:
        self._open_spark = open_spark
        self._lake = lake
        self._tables = tables
        self._batch_entries_max = batch_entries_max
        self._tables_at_once = tables_at_once
        self._tell = tell
        self._shelf = Shelf(lake, tables)

    @cached_property
    def _spark(self) -> "SparkSession":
        return self._open_spark()

    def open(self) -> None:
        """Start Spark now, so that a failure to start is reported before anything waits for a batch."""
        _ = self._spark

    def last_run(self) -> Run:
        return self._shelf.last_run()

    def uncompared(self) -> list[str]:
        """The histories that were not compared yet with the tables of their relay or device."""
        return self._shelf.uncompared(self.last_run().number)

    def kept(self, sources: Sequence[Source]) -> Mapping[str, Mark]:
        """Up to where a source may prune each history, because the lake has it."""
        last, changed = self.last_run(), breaches.changed_tables(self._shelf)
        doubts = outcome.in_doubt(self._shelf, self._shelf.findings(last.versions), last, sources, changed)
        return proof.kept(last.marks, self._shelf.uncompared(last.number), doubts)

    def has_read(self, sources: Sequence[Source]) -> bool:
        """Whether the lake has every entry of these histories that can be read."""
        last = self._known_run()
        return _are_read(self._plan(last, sources, full=False), last)

    def rows(self, sources: Sequence[Source], *, full: bool) -> int:
        """About how many rows the next batch works on: the unread entries, or all if it compares everything or computes a table anew."""
        last = self._known_run()
        made = self._plan(last, sources, full=full)
        return plan.waiting_entries(sources, {} if made.full or self._is_to_compute(made, last) else last.marks)

    def standing(self, sources: Sequence[Source]) -> Outcome | None:
        """The outcome of the last batch, if another one would change nothing; None if there is work to do."""
        last = self._known_run()
        is_whole = all(self._lake.committed(name) == last.number for name in last.versions)
        if last.number == 0 or not is_whole:
            return None
        made = self._plan(last, sources, full=False)
        if made.full or self._is_to_compute(made, last) or not _are_read(made, last):
            return None
        certified = self._shelf.certificate(last.number)
        certificate.lake_key(self._lake.private, certified)  # refuses a key that others may read
        changed = breaches.changed_tables(self._shelf)
        if certified is None or breaches.new(self._shelf, last, made.losses, changed):
            return None
        return outcome.standing(self._shelf, last, certified, sources, changed)

    def run_batch(self, sources: Sequence[Source], *, full: bool, rebuild: Collection[str] = ()) -> Outcome:
        """Run the next batch, or resume the one that was interrupted; the tables in `rebuild` and all made of them are first computed anew."""
        last = self._known_run()
        certificate.lake_key(
            self._lake.private, self._shelf.certificate(last.number)
        )  # a lost key is refused before any work
        agreed = self._agree(last, sources, full=full, rebuild=rebuild)
        certified = self._shelf.certificate(agreed.number)
        if certified is not None and certified.said["batch"] == agreed.number:
            return conclusion.complete(self._shelf, agreed, certified, last, sources)
        found = self._compute(agreed, last, sources)
        shutil.rmtree(self._lake.staging, ignore_errors=True)
        if agreed.number % VACUUM_EVERY_BATCHES == 0:
            upkeep.vacuum(self._lake, self._shelf.tables, self._shelf.last_run())
        return found

    def backfill(self, named: Collection[str]) -> Outcome:
        """A batch that reads nothing and computes anew the tables that are named or have other columns now, and all made of them."""
        if self._lake.committed("history") > self._shelf.last_run().number:
            raise BatchUnderWay(str(self._lake.path))
        return self.run_batch([], full=False, rebuild=named)

    def _known_run(self) -> Run:
        """The last complete batch; refuses a lake that has tables which this runner does not know."""
        last = self._shelf.last_run()
        others = sorted(set(last.versions) - set(self._shelf.tables))
        if others:
            raise LakeOther(str(self._lake.path), ", ".join(others))
        return last

    def _agree(self, last: Run, sources: Sequence[Source], *, full: bool, rebuild: Collection[str]) -> Plan:
        """The plan of the next batch, written to disk so that the batch can be resumed; of an interrupted batch the plan it had."""
        number = last.number + 1
        path = self._lake.private / PLAN_FILE
        committed = self._lake.committed("history")
        if committed >= number:
            kept = _planned(path)
            if kept is None or not kept.number == committed == number:
                raise OffsetGap(
                    str(self._lake.path), f"history has batch {committed}, the last complete one is {last.number}"
                )
            # This version of Holdfast may be newer than the one that planned, and have other columns.
            return replace(kept, rebuild=backfill.to_rebuild(self._lake, self._tables, last, kept.rebuild))
        made = self._plan(last, sources, full=full, rebuild=rebuild)
        self._lake.step("write plan", lambda: files.replace(path, made.encode()))
        return made

    def _plan(self, last: Run, sources: Sequence[Source], *, full: bool, rebuild: Collection[str] = ()) -> Plan:
        """A plan of the batch after the last complete one."""
        made = plan.make_plan(
            last.number + 1,
            sources,
            last.marks,
            partial(self._shelf.chain_at, last),
            full=full,
            entries_max=self._batch_entries_max,
            uncompared=self._shelf.uncompared(last.number),
        )
        return replace(made, rebuild=backfill.to_rebuild(self._lake, self._tables, last, rebuild))

    def _is_to_compute(self, made: Plan, last: Run) -> bool:
        """Whether a table is computed from all that the lake has read: one to rebuild, or one that the lake lacks."""
        return bool(made.rebuild or (last.number and backfill.lacking(self._tables, last)))

    def _lost_findings(self, agreed: Plan, last: Run) -> frozenset[str]:
        """Histories to compare in full again, because a table of findings is being rebuilt and starts empty."""
        begun = [*agreed.rebuild, *(one.name for one in backfill.lacking(self._tables, last))]
        return frozenset(last.marks if any(self._tables[name].finds for name in begun) else ())

    def _compute(self, agreed: Plan, last: Run, sources: Sequence[Source]) -> Outcome:
        """Write the tables of a batch, check their rules, and conclude it."""
        is_whole = agreed.full or self._is_to_compute(agreed, last)
        rows = sum(mark.seq for mark in last.marks.values()) * is_whole + agreed.entries
        # Of many rows one table at a time: each has work for all cores, and needs all of the memory.
        at_once = self._tables_at_once if rows <= session.SMALL_ROWS else 1
        session.fit(self._spark, rows)
        altered = breaches.other_files(self._shelf)  # now: most tables are open in the version that was certified
        upkeep.compact(self._lake, self._shelf.tables, last)
        owed = self._lost_findings(agreed, last)
        last = backfill.fill(self._spark, self._shelf, self._tables, last, agreed.rebuild)
        inputs = Inputs(self._spark, self._lake, self._tables, sources, last.versions)
        self._write_history(inputs, agreed, sources)
        inputs.batch = self._batch(agreed, last, inputs)
        self._write_tables(inputs, agreed.number, at_once)
        self._write_breaches(agreed, last, inputs, at_once, altered)
        return Conclusion(self._shelf, self._tables, agreed, last, inputs, owed).write(sources)

    def _write_history(self, inputs: Inputs, agreed: Plan, sources: Sequence[Source]) -> None:
        table = self._tables["history"]
        if self._lake.committed("history") < agreed.number:
            pieces = self._new_entries(agreed, sources).pieces()
            links = self._lake.staged_path(LINK) if LINK in self._tables else None
            staged = self._lake.stage_by(table.name, partial(self._take, inputs, pieces, table, links))
            self._check_offsets(agreed)
            also = [Transaction(_application(one), one.until) for one in agreed.ranges if one.until > 0]
            self._lake.commit(table, agreed.number, staged, also)
            inputs.passing |= {} if links is None else {LINK: links}
        inputs.note(table, agreed.number)

    def _take(self, inputs: Inputs, pieces: Sequence[Piece], table: Table, links: Path | None, target: Path) -> None:
        inputs.proved[table.name] = taking.take_history(lambda: self._spark, pieces, table.schema, target, links)

    def _new_entries(self, agreed: Plan, sources: Sequence[Source]) -> Reading:
        by_origin = {source.origin: source for source in sources}
        return entries([(by_origin[one.origin], one) for one in agreed.ranges if one.after < one.until])

    def _check_offsets(self, agreed: Plan) -> None:
        """Refuse a plan that does not begin where `history` ends by its own log: plans go by `run`, which may be of another copy of the lake."""
        handle = self._lake.delta("history")
        for one in agreed.ranges:
            committed = None if handle is None else handle.transaction_version(_application(one))
            if committed is not None and committed != one.after and not _is_known_gap(one, agreed):
                raise OffsetGap(
                    str(self._lake.path), f"{one.origin} has entries to {committed}, the batch begins after {one.after}"
                )

    def _batch(self, agreed: Plan, last: Run, inputs: Inputs) -> Batch:
        """What tables are told of the batch; its clock and the kinds of its entries are read from the history it added."""
        known = f"BETWEEN {times.MIN_US} AND {times.MAX_US}"  # a damaged time is no clock
        latest = f'max(epoch_us("at")) FILTER (epoch_us("at") {known})'
        sql = f"SELECT {latest} AS latest_at, list(DISTINCT kind) AS kinds FROM {{rows}}"  # noqa: S608 - our own words
        found = self._shelf.query_files("history", inputs.added["history"], sql)[0]
        at, kinds = max(last.at, found["latest_at"] or 0), frozenset(found["kinds"] or ())
        return Batch(agreed.number, at, agreed.ranges, agreed.full, kinds, agreed.is_behind)

    def _write_tables(self, inputs: Inputs, number: int, at_once: int) -> None:
        """Write every table, each after those that it reads."""
        needs = {name: needs_of(self._tables, one) for name, one in self._tables.items()}
        do_each(needs, at_once, lambda name: self._write_table(self._tables[name], inputs, number))

    def _write_table(self, table: Table, inputs: Inputs, number: int) -> None:
        if table.function is None or table.name in inputs.passing:  # LINK, for one, was written with the history
            return
        is_changed = inputs.is_changed(table)
        if table.writing is Writing.PASSING:
            inputs.passing[table.name] = inputs.stage(table, table.function) if is_changed else None
            return
        if self._lake.committed(table.name) < number:
            self._tell(table.name)
            if is_changed:
                staged = inputs.stage(table, table.function)
                self._lake.commit(table, number, staged, touched=inputs.touched(table))
            else:
                self._lake.commit_unchanged(table, number)
        inputs.note(table, number)

    def _write_breaches(
        self, agreed: Plan, last: Run, inputs: Inputs, at_once: int, altered: Sequence[dict[str, Any]]
    ) -> None:
        """Check the rules of all tables and who committed to them, and write the breaches that are new."""
        if self._lake.committed(records.BREACH.name) < agreed.number:
            broken = breaches.broken_rules(self._tables, inputs, at_once)
            foreign = breaches.foreign_commits(self._shelf)
            rows = breaches.new(self._shelf, last, agreed.losses, [*altered, *foreign, *broken])
            records.write(self._lake, records.BREACH, agreed.number, rows)
        inputs.note(records.BREACH, agreed.number)


def _are_read(made: Plan, last: Run) -> bool:
    return all(_is_read(one, last) for one in made.ranges)


def _is_read(one: Range, last: Run) -> bool:
    """Whether a range is empty, in a log that the lake has read before."""
    mark = last.marks.get(one.origin)
    return mark is not None and mark.log_id == one.log_id and one.after == one.until


def _planned(path: Path) -> Plan | None:
    """The plan of an interrupted batch; None if it is missing or damaged."""
    try:
        return Plan.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _application(one: Range) -> str:
    """The Delta application id of one log; the versions of its transactions are positions in that log."""
    return f"holdfast log {one.origin} {one.log_id.hex()}"


def _is_known_gap(one: Range, agreed: Plan) -> bool:
    return any(loss.origin == one.origin and loss.kind == "pruned_unread" for loss in agreed.losses)
