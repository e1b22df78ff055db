"""Breaches: what the runner itself finds wrong, as rows of the table `breach`.

There are three kinds: a log that lost entries (a `Loss` of the plan), a damaged record of earlier batches, and rows that break the
rule of their table.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.pipeline import records
from holdfast.pipeline.inputs import Inputs
from holdfast.pipeline.plan import Loss
from holdfast.pipeline.shelf import Run, Shelf
from holdfast.pipeline.side_by_side import do_each
from holdfast.pipeline.table import Table

BREACHES_PER_TABLE_MAX = 100
"""How many rows that break one table's rule are reported in one batch."""


def new(shelf: Shelf, last: Run, losses: Sequence[Loss], broken: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """The breaches that no batch has written down yet: lost entries, damaged records, and the given `broken` rules."""
    rows = [of_loss(loss) for loss in losses] + _broken_records(shelf, last) + list(broken)
    written = shelf.query("breach", last.versions.get("breach"), "SELECT kind, key FROM {rows}")
    known = {(row["kind"], row["key"]) for row in written}
    return [row for row in rows if (row["kind"], row["key"]) not in known]


def of_loss(loss: Loss) -> dict[str, Any]:
    """The row of a loss."""
    return {
        "origin": loss.origin,
        "kind": loss.kind,
        "key": loss.key,
        "detail": loss.detail,
        "seq": loss.seq,
        "at": None,
        "is_violation": loss.is_violation,
    }


def _broken_records(shelf: Shelf, last: Run) -> list[dict[str, Any]]:
    """Breaches of the lake's own record: `run` has a hole, or the last certificate is missing, forged or of another batch."""
    found = []
    runs = shelf.rows(records.RUN.name, last.versions.get(records.RUN.name))
    if runs != last.number:
        found.append(_of_rule(records.RUN, f"{runs} rows, the last one of batch {last.number}"))
    certified = shelf.certificate(last.number)
    if last.number and (certified is None or not certified.is_signed() or certified.said["batch"] != last.number):
        found.append(_of_rule(records.CERTIFICATE, f"of batch {last.number}"))
    return found


def broken_rules(tables: Mapping[str, Table], inputs: Inputs, at_once: int) -> list[dict[str, Any]]:
    """Rows that break their table's rule. The rules are checked in `at_once` queries side by side, each over several tables."""
    ruled = [
        table
        for table in tables.values()
        if table.invariant is not None and inputs.is_changed(table) and inputs.are_any(table.invariant)
    ]
    found: list[dict[str, Any]] = []
    parts = {f"part {number}": ruled[number::at_once] for number in range(at_once)}
    do_each(dict.fromkeys(parts, ()), at_once, lambda name: found.extend(_broken(parts[name], tables, inputs)))
    return found


def _broken(ruled: Sequence[Table], tables: Mapping[str, Table], inputs: Inputs) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it that

    selects = []
    for table in ruled:
        if table.invariant is None:
            continue
        rows = inputs.call(table.invariant).limit(BREACHES_PER_TABLE_MAX)
        view = f"broken_{table.name}"
        rows.select(F.lit(table.name).alias("table"), F.to_json(F.struct("*")).alias("row")).createOrReplaceTempView(
            view
        )
        selects.append(f"SELECT * FROM {view}")  # noqa: S608 - names out of the registry
    if not selects:
        return []
    # As one statement: a chain of unions would be analysed from its beginning with every table that joins it.
    found = inputs.spark.sql(" UNION ALL ".join(selects)).collect()
    return [_of_rule(tables[row.table], row.row) for row in found]


def _of_rule(table: Table, row: str) -> dict[str, Any]:
    """The breach of a table's rule by a row, which is given as text."""
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
