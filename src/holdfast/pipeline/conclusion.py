"""The conclusion of a batch: what its tables hold is certified, and a row of `run` then makes it the last complete batch.

A batch that was interrupted between the two has its certificate, and only the row is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.pipeline import balance, breaches, certificate, few, outcome, proof, records
from holdfast.pipeline.certificate import Certificate, Facts
from holdfast.pipeline.digest import Digest, of_files_by_tasks
from holdfast.pipeline.findings import Findings
from holdfast.pipeline.inputs import Inputs
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.outcome import Outcome
from holdfast.pipeline.plan import Mark, Plan, Source
from holdfast.pipeline.shelf import Run, Shelf
from holdfast.pipeline.table import Table, compares


@dataclass(frozen=True)
class Conclusion:
    """The end of a batch whose tables are all written."""

    shelf: Shelf
    tables: Mapping[str, Table]
    agreed: Plan
    last: Run  # the batch before
    inputs: Inputs
    owed: frozenset[str]  # histories that have to be compared in full again

    def write(self, sources: Sequence[Source]) -> Outcome:
        """Certify the batch and record it as complete.

        The sources are asked before that: if one is away, the run that goes on with this batch tells what is new in it.
        """
        heads = self._heads()
        findings = self.shelf.findings(self.inputs.versions)
        count, new = findings.count(), findings.new_violations(self.shelf.findings(self.last.versions))
        facts = self._facts(heads, findings)
        now = _run(facts.number, facts.at, heads, self.inputs.versions)
        changed = breaches.foreign_commits(self.shelf)  # the files that it builds on were compared when it began
        doubts = outcome.in_doubt(self.shelf, findings, now, sources, changed)
        self._write_certificate(facts)
        _write_run(self.shelf.lake, self.agreed, facts.at, heads, self.inputs.versions)
        return Outcome(
            number=facts.number,
            at=facts.at,
            entries=self.agreed.entries,
            balance=facts.balance,
            violations=count.violations,
            new_violations=new,
            findings=count.all,
            is_full=self.agreed.full,
            uncompared=facts.uncompared,
            in_doubt=doubts,
            kept=proof.kept(now.marks, facts.uncompared, doubts),
        )

    def uncompared(self) -> list[str]:
        """The histories that are still to be compared after this batch; also one that it read before an interruption, if its source is gone since."""
        if not any(map(compares, self.tables.values())):
            return []
        compared = set() if self.agreed.is_behind else {one.origin for one in self.inputs.shown(self.agreed.ranges)}
        read = {one.origin for one in self.agreed.ranges if one.after < one.until}
        before = set(self.shelf.uncompared(self.agreed.number - 1))
        owed = (before | self.owed) - (compared if self.agreed.full else set())
        return sorted(owed | (read - compared))

    def _heads(self) -> list[dict[str, Any]]:
        """Where the lake stands in every history after this batch."""
        heads = {origin: vars(mark) for origin, mark in self.last.marks.items()}
        sql = "SELECT origin, log_id, max(seq) AS seq, arg_max(chain, seq) AS chain FROM {rows} GROUP BY origin, log_id"
        chains = {
            (row["origin"], row["log_id"], row["seq"]): row["chain"]
            for row in self.shelf.query_files("history", self.inputs.added["history"], sql)
        }
        for one in self.agreed.ranges:
            # If the export left out the last entry, its chain is unknown; that of another entry would make the log look rewritten.
            chain = one.chain if one.after == one.until else chains.get((one.origin, one.log_id, one.until))
            heads[one.origin] = {"origin": one.origin, "log_id": one.log_id, "seq": one.until, "chain": chain}
        return [heads[origin] for origin in sorted(heads)]

    def _facts(self, heads: list[dict[str, Any]], findings: Findings) -> Facts:
        before = self.shelf.certificate(self.agreed.number - 1)
        said = {"digests": {}, "balance": {}} if before is None else before.said
        return Facts(
            number=self.agreed.number,
            at=self.last.at if self.inputs.batch is None else self.inputs.batch.at,
            ranges=self.agreed.ranges,
            heads=heads,
            versions=self.inputs.versions,
            digests=self._digests(said["digests"]),
            listings=self.shelf.listings(self.inputs.versions),
            findings=findings,
            balance=self._balance(said["balance"]),
            uncompared=self.uncompared(),
        )

    def _digests(self, before: Mapping[str, Mapping[str, Any]]) -> dict[str, Digest]:
        """The digest of every table that is certified row by row: as it was certified before, plus the rows that this batch added."""
        digests = {}
        for name in certificate.PROVED:
            if name in self.agreed.rebuild:
                digests[name] = self._digest(name, self.shelf.files(name, self.inputs.versions[name]))
            elif name in self.tables:
                old = Digest.of_text(before[name]["rows"], before[name]["digest"]) if name in before else Digest()
                digests[name] = old + (self.inputs.proved.get(name) or self._digest(name, self.inputs.added[name]))
        return digests

    def _digest(self, name: str, paths: Sequence[Path]) -> Digest:
        """The digest of a table's files, computed by Spark's tasks where the files are large."""
        if few.are_few(paths):
            return self.shelf.digest(name, paths)
        schema = records.arrow_schema(self.tables[name])
        return of_files_by_tasks(self.inputs.spark, paths, self.shelf.lake.root(name), schema)

    def _balance(self, before: Mapping[str, int]) -> dict[str, int]:
        """The balance after this batch; where the fates were computed anew it is counted from all rows."""
        versions, added = self.inputs.versions, dict(self.inputs.added)
        open_rows = self.shelf.rows("fate_open", versions.get("fate_open"))
        if "message_fate" in self.agreed.rebuild:
            before = {}
            added |= {name: self.shelf.files(name, versions[name]) for name in ("history", "message_fate")}
        return balance.counted(self.shelf, before, added, open_rows)

    def _write_certificate(self, facts: Facts) -> None:
        lake = self.shelf.lake
        if lake.committed(records.CERTIFICATE.name) < facts.number:
            before = self.shelf.certificate(facts.number - 1)
            made = certificate.write(facts, before, certificate.lake_key(lake.private, before))
            row = {
                "number": facts.number,
                "at": records.as_time(facts.at),
                "document": made.document,
                "pubkey": made.pubkey,
                "signature": made.signature,
            }
            records.write(lake, records.CERTIFICATE, facts.number, [row])
        self.inputs.note(records.CERTIFICATE, facts.number)


def complete(shelf: Shelf, agreed: Plan, certified: Certificate, last: Run, sources: Sequence[Source]) -> Outcome:
    """Record a batch as complete that was certified and then interrupted, exactly as it was certified, by whichever version of Holdfast."""
    handle = shelf.lake.delta(records.CERTIFICATE.name)
    if handle is None:
        raise RuntimeError("a certificate comes from its table")
    versions = {**certified.said["versions"], records.CERTIFICATE.name: handle.version()}
    now = _run(agreed.number, certified.said["at"], certified.heads, versions)
    found = replace(
        outcome.standing(shelf, now, certified, sources, breaches.foreign_commits(shelf)),
        new_violations=shelf.findings(versions).new_violations(shelf.findings(last.versions)),
        entries=agreed.entries,
        is_full=agreed.full,
        is_new=True,
    )
    _write_run(shelf.lake, agreed, now.at, certified.heads, versions)
    return found


def _run(number: int, at: int, heads: Sequence[Mapping[str, Any]], versions: Mapping[str, int]) -> Run:
    return Run(number, at, {head["origin"]: Mark(**head) for head in heads}, versions)


def _write_run(
    lake: Lake, agreed: Plan, at: int, heads: Sequence[Mapping[str, Any]], versions: Mapping[str, int]
) -> None:
    row = {
        "number": agreed.number,
        "at": records.as_time(at),
        "entries": agreed.entries,
        "ranges": [vars(one) for one in agreed.ranges],
        "heads": heads,
        "versions": [{"table": name, "version": version} for name, version in sorted(versions.items())],
    }
    records.write(lake, records.RUN, agreed.number, [row])
