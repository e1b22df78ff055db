"""Breaches: what the runner itself finds wrong, as rows of the table `breach`.

There are four kinds: a log that lost entries (a `Loss` of the plan), a damaged record of earlier batches, a table that somebody else
changed after the last batch, and rows that break the rule of their table.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from deltalake.exceptions import DeltaError

from holdfast.pipeline import records
from holdfast.pipeline.findings import TABLE_CHANGED
from holdfast.pipeline.inputs import Inputs
from holdfast.pipeline.lake import VersionMissing
from holdfast.pipeline.plan import Loss
from holdfast.pipeline.shelf import Run, Shelf
from holdfast.pipeline.side_by_side import do_each
from holdfast.pipeline.table import Table

BREACHES_PER_TABLE_MAX = 100
"""How many rows that break one table's rule are reported in one batch."""

_UNREADABLE = (FileNotFoundError, DeltaError, VersionMissing, msgspec.DecodeError)
"""What shows that a log is not whole. That a disk fails, or that too many files are open, ends the run: a finding would stay for good."""

_Change = tuple[int, str]
"""The version of a table that is not as a batch made it, and what is wrong with it."""

_Look = Callable[[Shelf, Run, Mapping[str, Any], str], _Change | None]
"""Compares a table, by its name, with the last batch and what its certificate says."""


def new(shelf: Shelf, last: Run, losses: Sequence[Loss], others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The breaches that no batch has written down yet: lost entries, damaged records, and `others`: changed tables, broken rules."""
    rows = [of_loss(loss) for loss in losses] + _broken_records(shelf, last) + list(others)
    written = shelf.query("breach", last.versions.get("breach"), "SELECT kind, key FROM {rows}")
    known = {(row["kind"], row["key"]) for row in written}
    found = {(row["kind"], row["key"]): row for row in rows}
    return [row for named, row in found.items() if named not in known]


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


def changed_tables(shelf: Shelf) -> list[dict[str, Any]]:
    """Breaches of tables that are not as the last batch left them."""
    return other_files(shelf) + foreign_commits(shelf)


def other_files(shelf: Shelf) -> list[dict[str, Any]]:
    """Breaches of tables that do not have the files that were certified with the last batch, or of which `run` names another version."""
    return _changes(shelf, _of_files)


def foreign_commits(shelf: Shelf) -> list[dict[str, Any]]:
    """Breaches of tables to whose rows somebody has committed since the last batch."""
    return _changes(shelf, _of_commits)


def _changes(shelf: Shelf, look: _Look) -> list[dict[str, Any]]:
    """What a look at every table of the last certificate finds."""
    last = shelf.last_run()
    certified = shelf.certificate(last.number)
    said = {"versions": {}} if certified is None else certified.said
    found = []
    for name in sorted(said["versions"]):
        try:
            change = look(shelf, last, said, name)
        except _UNREADABLE as error:
            change = said["versions"][name], f"its versions from there on cannot be read: {error}"
        if change is not None:
            version, detail = change
            found.append(_of_lake(TABLE_CHANGED, f"{name}/{version}", f"{name}, version {version}: {detail}"))
    return found


def _of_files(shelf: Shelf, last: Run, said: Mapping[str, Any], name: str) -> _Change | None:
    version = said["versions"][name]
    if last.versions.get(name) != version:
        return version, f"it was certified with batch {last.number}, for which `run` names another"
    listed = said.get("files", {}).get(name)  # older certificates do not list the files of all tables
    if listed is None or shelf.listing(name, version) == listed:
        return None
    return version, f"it has other files than were certified with batch {last.number}"


def _of_commits(shelf: Shelf, last: Run, said: Mapping[str, Any], name: str) -> _Change | None:
    version = shelf.lake.foreign(name, said["versions"][name], last.number)
    return None if version is None else (version, f"it changes rows, and no batch after {last.number} committed it")


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
    return _of_lake("invariant", f"{table.name}/{row}", f"{table.name}: {rule}")


def _of_lake(kind: str, key: str, detail: str) -> dict[str, Any]:
    """The row of a violation that the lake itself shows."""
    return {
        "origin": "lake",
        "kind": kind,
        "key": key,
        "detail": detail,
        "seq": None,
        "at": None,
        "is_violation": True,
    }
