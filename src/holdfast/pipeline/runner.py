"""The runner: batch after batch, each over what the histories gained, each computed once however often it is interrupted.

A batch commits `history` first and `run` last. One that was interrupted after its history is taken up again with the plan it
had, and tables that have it already are left as they are; one that was interrupted before is planned anew.
"""

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from deltalake.transaction import Transaction

from holdfast.pipeline import backfill, certificate, few, plan, proof, records, session, shelf, taking, times, upkeep
from holdfast.pipeline.certificate import Facts
from holdfast.pipeline.digest import Digest, of_files_by_tasks
from holdfast.pipeline.findings import Findings
from holdfast.pipeline.inputs import Inputs, entries
from holdfast.pipeline.lake import BatchUnderWay, Lake, LakeOther, OffsetGap
from holdfast.pipeline.plan import Loss, Mark, Plan, Source
from holdfast.pipeline.shelf import Run, Shelf
from holdfast.pipeline.side_by_side import do_each
from holdfast.pipeline.state import Reading
from holdfast.pipeline.table import Batch, Range, Table, Writing, compares, needs_of
from holdfast.pipeline.taking import Piece
from holdfast.store import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BREACHES_PER_TABLE_MAX = 100
"""How many rows that break one table's rule are reported in one batch."""

VACUUM_EVERY_BATCHES = 100

TABLES_AT_ONCE = min(4, os.cpu_count() or 1)
"""How many tables of a small batch are computed side by side."""

PLAN_FILE = "plan.json"

LINK = "link"
"""The table whose rows come along with the history."""


@dataclass(frozen=True)
class Outcome:
    """A batch that is complete, or how the last one left the lake, which then has no new entries."""

    number: int
    at: int
    entries: int
    balance: Mapping[str, int]
    violations: int
    new_violations: int  # which the batch before did not know
    findings: int
    is_full: bool
    uncompared: Sequence[str]  # histories that were not compared yet with what their places hold
    in_doubt: Mapping[str, int]  # per history the last position that is proved, if there are others
    kept: Mapping[str, Mark]
    is_new: bool = True


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
        self._proved: dict[str, Digest] = {}  # by whoever took the rows over
        self._owed: frozenset[str] = frozenset()  # histories that this batch makes it necessary to compare again

    @cached_property
    def _spark(self) -> "SparkSession":
        return self._open_spark()

    def last_run(self) -> Run:
        return self._shelf.last_run()

    def uncompared(self) -> frozenset[str]:
        """The histories that the batches so far were not compared with."""
        return self._uncompared(self.last_run().number + 1)

    def kept(self, sources: Sequence[Source]) -> Mapping[str, Mark]:
        """Up to where each history need not be kept elsewhere."""
        last = self.last_run()
        in_doubt = _in_doubt(self._shelf.findings(last.versions).first_of_each(), last.marks, sources)
        return proof.kept(last.marks, self._uncompared(last.number + 1), in_doubt)

    def has_read(self, sources: Sequence[Source]) -> bool:
        """Whether the lake has all that can be read of histories."""
        last = self._known_run()
        return _are_read(self._plan(last, sources, full=False), last)

    def run_batch(self, sources: Sequence[Source], *, full: bool, rebuild: Collection[str] = ()) -> Outcome:
        """The next batch, or the one that was interrupted; named tables are first computed anew, with what is made of them."""
        self._proved = {}
        last = self._known_run()
        certificate.lake_key(self._lake.private, self._certificate_before(last.number + 1))  # or all of it were in vain
        agreed = self._agree(last, sources, full=full, rebuild=rebuild)
        made = self._certificate_before(agreed.number + 1)
        if made is not None and made.said["batch"] == agreed.number:
            return self._complete(agreed, made, last, sources)
        is_whole = agreed.full or self._is_to_compute(agreed, last)
        rows = sum(mark.seq for mark in last.marks.values()) * is_whole + agreed.entries
        session.fit(self._spark, rows)
        upkeep.compact(self._lake, self._shelf.tables, last)
        self._owed = self._lost_findings(agreed, last)
        last = backfill.fill(self._spark, self._shelf, self._tables, last, agreed.rebuild)
        inputs = Inputs(self._spark, self._lake, self._tables, sources, last.versions)
        self._write_history(inputs, agreed, sources)
        inputs.batch = self._batch(agreed, last, inputs)
        at_once = self._tables_at_once if rows <= session.SMALL_ROWS else 1
        self._write_tables(inputs, agreed.number, at_once)
        self._write_breaches(agreed, last, inputs, at_once)
        outcome = self._conclude(agreed, last, inputs, sources)
        shutil.rmtree(self._lake.staging, ignore_errors=True)
        if agreed.number % VACUUM_EVERY_BATCHES == 0:
            upkeep.vacuum(self._lake, self._shelf.tables, self._shelf.last_run())
        return outcome

    def standing(self, sources: Sequence[Source]) -> Outcome | None:
        """The last outcome, if a normal batch would change nothing; None if there is work to do."""
        last = self._known_run()
        is_whole = all(self._lake.committed(name) == last.number for name in last.versions)
        if last.number == 0 or not is_whole:
            return None
        made = self._plan(last, sources, full=False)
        if made.full or self._is_to_compute(made, last) or not _are_read(made, last):
            return None
        before = self._certificate_before(last.number + 1)
        certificate.lake_key(self._lake.private, before)  # which refuses one that others may read
        return None if before is None or self._news(made, last) else self._stands(last, before, sources)

    def rows(self, sources: Sequence[Source], *, full: bool) -> int:
        """About how many rows are worked on: those that wait, or all, where all are compared or tables are computed anew."""
        last = self._known_run()
        made = self._plan(last, sources, full=full)
        return plan.waiting_entries(sources, {} if made.full or self._is_to_compute(made, last) else last.marks)

    def open(self) -> None:
        """Start Spark now: what is wrong with that is then said before anything waits for it."""
        _ = self._spark

    def _is_to_compute(self, made: Plan, last: Run) -> bool:
        """Whether a table is to be computed from all that the lake has read."""
        return bool(made.rebuild or (last.number and backfill.lacking(self._tables, last)))

    def _lost_findings(self, agreed: Plan, last: Run) -> frozenset[str]:
        """Histories to compare in full again, because a table of findings is being rebuilt and starts empty."""
        begun = [*agreed.rebuild, *(one.name for one in backfill.lacking(self._tables, last))]
        return frozenset(last.marks if any(self._tables[name].finds for name in begun) else ())

    def _stands(self, last: Run, before: certificate.Certificate, sources: Sequence[Source]) -> Outcome:
        """What the last complete batch came to, without what it read."""
        findings = self._shelf.findings(last.versions)
        count = findings.count()
        in_doubt = _in_doubt(findings.first_of_each(), last.marks, sources)
        return Outcome(
            number=last.number,
            at=last.at,
            entries=0,
            balance=before.said["balance"],
            violations=count.violations,
            new_violations=0,
            findings=count.all,
            is_full=False,
            uncompared=before.uncompared,
            in_doubt=in_doubt,
            kept=proof.kept(last.marks, before.uncompared, in_doubt),
            is_new=False,
        )

    def _known_run(self) -> Run:
        """The last complete batch, of a lake whose tables are ours."""
        last = self._shelf.last_run()
        others = sorted(set(last.versions) - set(self._shelf.tables))
        if others:
            raise LakeOther(str(self._lake.path), ", ".join(others))
        return last

    def backfill(self, named: Collection[str]) -> Outcome:
        """A batch that reads nothing and computes tables anew: those named, those with other columns, what is made of them."""
        if self._lake.committed("history") > self._shelf.last_run().number:
            raise BatchUnderWay(str(self._lake.path))
        return self.run_batch([], full=False, rebuild=named)

    def _agree(self, last: Run, sources: Sequence[Source], *, full: bool, rebuild: Collection[str]) -> Plan:
        """The plan of the batch that follows the last complete one; kept, so that an interrupted batch can go on."""
        number = last.number + 1
        path = self._lake.private / PLAN_FILE
        committed = self._lake.committed("history")
        if committed >= number:
            kept = _planned(path)
            if kept is None or not kept.number == committed == number:
                raise OffsetGap(
                    str(self._lake.path), f"history has batch {committed}, the last complete one is {last.number}"
                )
            # A newer version may have taken it up, and rebuilds what the one that planned it had no reason to.
            return replace(kept, rebuild=backfill.to_rebuild(self._lake, self._tables, last, kept.rebuild))
        made = self._plan(last, sources, full=full, rebuild=rebuild)
        self._lake.step("write plan", lambda: files.replace(path, made.encode()))
        return made

    def _plan(self, last: Run, sources: Sequence[Source], *, full: bool, rebuild: Collection[str] = ()) -> Plan:
        """A batch after the last complete one."""
        number = last.number + 1
        made = plan.make_plan(
            number,
            sources,
            last.marks,
            full=full,
            entries_max=self._batch_entries_max,
            uncompared=self._uncompared(number),
        )
        return replace(made, rebuild=backfill.to_rebuild(self._lake, self._tables, last, rebuild))

    def _write_history(self, inputs: Inputs, agreed: Plan, sources: Sequence[Source]) -> None:
        table = self._tables["history"]
        if self._lake.committed("history") < agreed.number:
            pieces = self._new_entries(agreed, sources).pieces()
            links = self._lake.staged_path(LINK) if LINK in self._tables else None
            staged = self._lake.stage_by(table.name, partial(self._take, pieces, table, links))
            self._check_offsets(agreed)
            also = [Transaction(_application(one), one.until) for one in agreed.ranges if one.until > 0]
            self._lake.commit(table, agreed.number, staged, also)
            inputs.passing |= {} if links is None else {LINK: links}
        self._note(table, inputs, agreed.number)

    def _take(self, pieces: Sequence[Piece], table: Table, links: Path | None, target: Path) -> None:
        self._proved[table.name] = taking.take_history(lambda: self._spark, pieces, table.schema, target, links)

    def _new_entries(self, agreed: Plan, sources: Sequence[Source]) -> Reading:
        by_origin = {source.origin: source for source in sources}
        return entries([(by_origin[one.origin], one) for one in agreed.ranges if one.after < one.until])

    def _check_offsets(self, agreed: Plan) -> None:
        """What is to be added begins where the table ends; asked of the table itself, not of our own notes."""
        handle = self._lake.delta("history")
        for one in agreed.ranges:
            committed = None if handle is None else handle.transaction_version(_application(one))
            if committed is not None and committed != one.after and not _is_known_gap(one, agreed):
                raise OffsetGap(
                    str(self._lake.path), f"{one.origin} has entries to {committed}, the batch begins after {one.after}"
                )

    def _batch(self, agreed: Plan, last: Run, inputs: Inputs) -> Batch:
        known = f"BETWEEN {times.MIN_US} AND {times.MAX_US}"  # a damaged time is no clock
        latest = f'max(epoch_us("at")) FILTER (epoch_us("at") {known})'
        sql = f"SELECT {latest} AS latest_at, list(DISTINCT kind) AS kinds FROM {{rows}}"  # noqa: S608 - our own words
        found = self._shelf.query_files("history", inputs.added["history"], sql)[0]
        at, kinds = max(last.at, found["latest_at"] or 0), frozenset(found["kinds"] or ())
        return Batch(agreed.number, at, agreed.ranges, agreed.full, kinds, agreed.is_behind)

    def _write_tables(self, inputs: Inputs, number: int, at_once: int) -> None:
        """Every table after those that it reads. Of many rows one at a time: each has work for all cores, and all of the memory."""
        needs = {name: needs_of(self._tables, one) for name, one in self._tables.items()}
        do_each(needs, at_once, lambda name: self._write_table(self._tables[name], inputs, number))

    def _write_table(self, table: Table, inputs: Inputs, number: int) -> None:
        if table.function is None:
            return
        is_changed = inputs.is_changed(table)
        if table.name in inputs.passing:
            return  # whoever took the history over had it in hand
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
        self._note(table, inputs, number)

    def _note(self, table: Table, inputs: Inputs, number: int) -> None:
        """Remember what a table became in this batch, whether just now or before an interruption."""
        handle = self._lake.delta(table.name)
        if handle is None:
            raise RuntimeError(f"{table.name} was not committed")
        inputs.versions[table.name] = handle.version()
        inputs.added[table.name] = self._lake.batch_files(handle, number)

    def _conclude(self, agreed: Plan, last: Run, inputs: Inputs, sources: Sequence[Source]) -> Outcome:
        """Certify, and make the batch the last complete one."""
        heads = self._heads(agreed, last, inputs)
        findings = self._shelf.findings(inputs.versions)
        count, new = findings.count(), findings.new_violations(self._shelf.findings(last.versions))
        facts = self._facts(agreed, last, inputs, heads, findings)
        self._write_certificate(facts, inputs)
        self._write_run(agreed, facts.at, heads, inputs.versions)
        marks = {head["origin"]: Mark(**head) for head in heads}
        in_doubt = _in_doubt(findings.first_of_each(), marks, sources)
        return Outcome(
            number=agreed.number,
            at=facts.at,
            entries=agreed.entries,
            balance=facts.balance,
            violations=count.violations,
            new_violations=new,
            findings=count.all,
            is_full=agreed.full,
            uncompared=facts.uncompared,
            in_doubt=in_doubt,
            kept=proof.kept(marks, facts.uncompared, in_doubt),
        )

    def _complete(self, agreed: Plan, made: certificate.Certificate, last: Run, sources: Sequence[Source]) -> Outcome:
        """Make a batch that was certified and then interrupted the last complete one, as it was certified: by whichever version."""
        handle = self._lake.delta(records.CERTIFICATE.name)
        if handle is None:
            raise RuntimeError("a certificate comes from its table")
        versions = {**made.said["versions"], records.CERTIFICATE.name: handle.version()}
        known = self._shelf.findings(last.versions)
        self._write_run(agreed, made.said["at"], made.heads, versions)
        now = self._shelf.last_run()
        return replace(
            self._stands(now, made, sources),
            new_violations=self._shelf.findings(now.versions).new_violations(known),
            entries=agreed.entries,
            is_full=agreed.full,
            is_new=True,
        )

    def _write_run(
        self, agreed: Plan, at: int, heads: Sequence[Mapping[str, Any]], versions: Mapping[str, int]
    ) -> None:
        row = {
            "number": agreed.number,
            "at": records.as_time(at),
            "entries": agreed.entries,
            "ranges": [_range_row(one) for one in agreed.ranges],
            "heads": heads,
            "versions": [{"table": name, "version": version} for name, version in sorted(versions.items())],
        }
        self._write_record(records.RUN, agreed.number, [row])

    def _write_breaches(self, agreed: Plan, last: Run, inputs: Inputs, at_once: int) -> None:
        """Check the rules, and write down what breaks one."""
        if self._lake.committed(records.BREACH.name) < agreed.number:
            rows = self._news(agreed, last, self._broken_rules(inputs, at_once))
            self._write_record(records.BREACH, agreed.number, rows)
        self._note(records.BREACH, inputs, agreed.number)

    def _news(self, agreed: Plan, last: Run, broken: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """What is wrong with the histories' ends, with our own notes and with rows, as far as no batch has told it."""
        rows = [_loss_row(loss) for loss in agreed.losses] + self._broken_records(last) + list(broken)
        told = self._shelf.query("breach", last.versions.get("breach"), "SELECT kind, key FROM {rows}")
        known = {(row["kind"], row["key"]) for row in told}
        return [row for row in rows if (row["kind"], row["key"]) not in known]

    def _broken_records(self, last: Run) -> list[dict[str, Any]]:
        """What is wrong with our own notes of the batches before."""
        found = []
        runs = self._shelf.rows(records.RUN.name, last.versions.get(records.RUN.name))
        if runs != last.number:
            found.append(_breach_row(records.RUN, f"{runs} rows, the last one of batch {last.number}"))
        before = self._certificate_before(last.number + 1)
        if last.number and (before is None or not before.is_signed() or before.said["batch"] != last.number):
            found.append(_breach_row(records.CERTIFICATE, f"of batch {last.number}"))
        return found

    def _broken_rules(self, inputs: Inputs, at_once: int) -> list[dict[str, Any]]:
        """Rows that break a table's rule, of all tables in one go, or in as many as are done at once."""
        ruled = [
            table
            for table in self._tables.values()
            if table.invariant is not None and inputs.is_changed(table) and inputs.are_any(table.invariant)
        ]
        found: list[dict[str, Any]] = []
        parts = {f"part {number}": ruled[number::at_once] for number in range(at_once)}
        do_each(dict.fromkeys(parts, ()), at_once, lambda name: found.extend(self._broken(parts[name], inputs)))
        return found

    def _broken(self, ruled: Sequence[Table], inputs: Inputs) -> list[dict[str, Any]]:
        from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

        selects = []
        for table in ruled:
            if table.invariant is None:
                continue
            rows = inputs.call(table.invariant).limit(BREACHES_PER_TABLE_MAX)
            view = f"broken_{table.name}"
            rows.select(
                F.lit(table.name).alias("table"), F.to_json(F.struct("*")).alias("row")
            ).createOrReplaceTempView(view)
            selects.append(f"SELECT * FROM {view}")  # noqa: S608 - names out of the registry
        if not selects:
            return []
        # One statement: joined one by one, all of it would be analysed again with each of them.
        found = self._spark.sql(" UNION ALL ".join(selects)).collect()
        return [_breach_row(self._tables[row.table], row.row) for row in found]

    def _heads(self, agreed: Plan, last: Run, inputs: Inputs) -> list[dict[str, Any]]:
        """Where every history stands after this batch."""
        heads = {origin: vars(mark) for origin, mark in last.marks.items()}
        sql = "SELECT origin, log_id, max(seq) AS seq, arg_max(chain, seq) AS chain FROM {rows} GROUP BY origin, log_id"
        chains = {
            (row["origin"], row["log_id"], row["seq"]): row["chain"]
            for row in self._shelf.query_files("history", inputs.added["history"], sql)
        }
        for one in agreed.ranges:
            # Of an entry that the export left out nobody knows the chain; that of another would make the log look rewritten.
            chain = one.chain if one.after == one.until else chains.get((one.origin, one.log_id, one.until))
            heads[one.origin] = {"origin": one.origin, "log_id": one.log_id, "seq": one.until, "chain": chain}
        return [heads[origin] for origin in sorted(heads)]

    def _facts(
        self,
        agreed: Plan,
        last: Run,
        inputs: Inputs,
        heads: list[dict[str, Any]],
        findings: Findings,
    ) -> Facts:
        before = self._certificate_before(agreed.number)
        said = {"digests": {}, "balance": {}} if before is None else before.said
        digests = {}
        for name in certificate.PROVED:
            if name in self._tables:
                old = said["digests"].get(name, {"rows": 0, "digest": Digest().text()})
                if name in agreed.rebuild:
                    digests[name] = self._digest(name, self._shelf.files(name, inputs.versions[name]))
                else:
                    added = self._proved.get(name) or self._digest(name, inputs.added[name])
                    digests[name] = Digest.of_text(old["rows"], old["digest"]) + added
        open_rows = self._shelf.rows("fate_open", inputs.versions.get("fate_open"))
        counted, brought = said["balance"], dict(inputs.added)
        if "message_fate" in agreed.rebuild:
            counted = {}
            brought |= {name: self._shelf.files(name, inputs.versions[name]) for name in ("history", "message_fate")}
        balance = shelf.balance(self._shelf, counted, brought, open_rows)
        at = last.at if inputs.batch is None else inputs.batch.at
        listings = self._shelf.listings(inputs.versions)
        uncompared = self._left_uncompared(agreed, inputs)
        return Facts(
            agreed.number, at, agreed.ranges, heads, inputs.versions, digests, listings, findings, balance, uncompared
        )

    def _digest(self, name: str, paths: Sequence[Path]) -> Digest:
        """The digest of a table's files, by tasks of Spark's where they are many."""
        if few.are_few(paths):
            return self._shelf.digest(name, paths)
        schema = records.arrow_schema(self._tables[name])
        return of_files_by_tasks(self._spark, paths, self._lake.root(name), schema)

    def _uncompared(self, number: int) -> frozenset[str]:
        """Histories that some earlier batch read without comparing them with the relay's or device's tables."""
        before = self._certificate_before(number)
        return frozenset() if before is None else frozenset(before.uncompared)

    def _left_uncompared(self, agreed: Plan, inputs: Inputs) -> list[str]:
        """`_uncompared` for the next batch. A resumed batch may have gone on without a log that it had at first."""
        if not any(map(compares, self._tables.values())):
            return []
        compared = set() if agreed.is_behind else {one.origin for one in inputs.shown(agreed.ranges)}
        read = {one.origin for one in agreed.ranges if one.after < one.until}
        owed = (self._uncompared(agreed.number) | self._owed) - (compared if agreed.full else set())
        return sorted(owed | (read - compared))

    def _certificate_before(self, number: int) -> certificate.Certificate | None:
        return self._shelf.certificate(number - 1)

    def _write_certificate(self, facts: Facts, inputs: Inputs) -> None:
        if self._lake.committed(records.CERTIFICATE.name) < facts.number:
            before = self._certificate_before(facts.number)
            made = certificate.write(facts, before, certificate.lake_key(self._lake.private, before))
            row = {
                "number": facts.number,
                "at": records.as_time(facts.at),
                "document": made.document,
                "pubkey": made.pubkey,
                "signature": made.signature,
            }
            self._write_record(records.CERTIFICATE, facts.number, [row])
        self._note(records.CERTIFICATE, inputs, facts.number)

    def _write_record(self, table: Table, number: int, rows: list[dict[str, Any]]) -> None:
        staged = self._lake.stage_rows(table, records.arrow_rows(table, rows))
        self._lake.commit(table, number, staged)


def _in_doubt(
    findings: Sequence[Mapping[str, Any]], marks: Mapping[str, Mark], sources: Sequence[Source]
) -> dict[str, int]:
    """The doubts of what was found, and of what became of the sources' logs since: who keeps one is told nothing that is not so any more."""
    losses = plan.make_plan(0, sources, marks, full=False).losses
    return proof.in_doubt([*findings, *({**_loss_row(loss), "table": records.BREACH.name} for loss in losses)])


def _are_read(made: Plan, last: Run) -> bool:
    return all(_is_read(one, last) for one in made.ranges)


def _is_read(one: Range, last: Run) -> bool:
    """Whether the lake has all of a range."""
    mark = last.marks.get(one.origin)
    return mark is not None and mark.log_id == one.log_id and one.after == one.until


def _planned(path: Path) -> Plan | None:
    """The plan of a batch that was interrupted, if it is there as it was written."""
    try:
        return Plan.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _application(one: Range) -> str:
    """The Delta application whose transactions are the positions of one log."""
    return f"holdfast log {one.origin} {one.log_id.hex()}"


def _is_known_gap(one: Range, agreed: Plan) -> bool:
    return any(loss.origin == one.origin and loss.kind == "pruned_unread" for loss in agreed.losses)


def _range_row(one: Range) -> dict[str, Any]:
    return {"origin": one.origin, "log_id": one.log_id, "after": one.after, "until": one.until, "chain": one.chain}


def _loss_row(loss: Loss) -> dict[str, Any]:
    return {
        "origin": loss.origin,
        "kind": loss.kind,
        "key": loss.key,
        "detail": loss.detail,
        "seq": loss.seq,
        "at": None,
        "is_violation": loss.is_violation,
    }


def _breach_row(table: Table, row: str) -> dict[str, Any]:
    rule = table.rule if table.invariant is None else (table.invariant.__doc__ or "").strip()
    return {
        "origin": "lake",
        "kind": "invariant",
        "key": f"{table.name}/{row}",
        "detail": f"{table.name}: {rule}",
        "seq": None,
        "at": None,
        "is_violation": True,
    }
