"""The outcome of a batch: what a run reports of it, and up to where each history may be pruned at its source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.pipeline import plan, proof, records
from holdfast.pipeline.certificate import Certificate
from holdfast.pipeline.findings import Findings
from holdfast.pipeline.plan import Mark, Source
from holdfast.pipeline.shelf import Run, Shelf

EXTENT = "extent"
"""The table that knows where restores left logs."""


@dataclass(frozen=True)
class Outcome:
    """How a batch left the lake; with `is_new` false it is the last one, and there was nothing for another."""

    number: int
    at: int
    entries: int
    balance: Mapping[str, int]
    violations: int
    new_violations: int  # which the batch before did not have
    findings: int
    is_full: bool
    uncompared: Sequence[str]  # histories that were not compared yet with the tables of their relay or device
    in_doubt: Mapping[str, int]  # for a history with entries in doubt, the last position before them
    kept: Mapping[str, Mark]  # up to where a source may prune each history
    is_new: bool = True


def standing(
    shelf: Shelf, last: Run, certified: Certificate, sources: Sequence[Source], changed: Sequence[Mapping[str, Any]]
) -> Outcome:
    """The outcome of the last complete batch, for a run that makes none; or of one that is about to be complete."""
    findings = shelf.findings(last.versions)
    count = findings.count()
    doubts = in_doubt(shelf, findings, last, sources, changed)
    return Outcome(
        number=last.number,
        at=last.at,
        entries=0,
        balance=certified.said["balance"],
        violations=count.violations,
        new_violations=0,
        findings=count.all,
        is_full=False,
        uncompared=certified.uncompared,
        in_doubt=doubts,
        kept=proof.kept(last.marks, certified.uncompared, doubts),
        is_new=False,
    )


def in_doubt(
    shelf: Shelf,
    findings: Findings,
    last: Run,
    sources: Sequence[Source],
    changed: Sequence[Mapping[str, Any]],
) -> dict[str, int]:
    """For each history with entries in doubt after a batch, the last position before them.

    Whether a log is cut off or rewritten is asked of it as it is now: its source must not be told to prune by what was true at the
    time of the batch, and no longer be kept from it once the log is whole again. Tables that were `changed` since count, too.
    """
    losses = plan.make_plan(0, sources, last.marks, partial(shelf.chain_at, last), full=False).losses
    told = [*findings.first_of_each(), *({**row, "table": records.BREACH.name} for row in changed)]
    return proof.in_doubt(told, losses, _left(shelf, last), last.marks)


def _left(shelf: Shelf, last: Run) -> dict[tuple[str, bytes], int]:
    """Where restores left the logs that the lake does not read any more."""
    if EXTENT not in shelf.tables:
        return {}
    sql = "SELECT origin, log_id, valid_until FROM {rows} WHERE valid_until IS NOT NULL"
    rows = shelf.query(EXTENT, last.versions.get(EXTENT), sql)
    return {
        (row["origin"], row["log_id"]): row["valid_until"]
        for row in rows
        if row["origin"] in last.marks and last.marks[row["origin"]].log_id != row["log_id"]
    }
