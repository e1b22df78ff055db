"""A lake and what reads into it, for tests."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.pipeline import plan
from holdfast.pipeline.lake import Lake, Step, plainly
from holdfast.pipeline.outcome import Outcome
from holdfast.pipeline.pages import Place
from holdfast.pipeline.runner import TABLES_AT_ONCE, Runner
from holdfast.pipeline.shelf import Shelf
from holdfast.pipeline.table import Table, load, needs_of, table_of
from holdfast.protocol.anchor import sign_anchor
from holdfast.relay import identity
from holdfast.relay.database import open_relay
from holdfast.store import history
from tests.relay.running import RunningRelay, running

PATIENCE_S = 60.0


def place_of(relay: RunningRelay, folder: Path, patience_s: float = PATIENCE_S) -> Place:
    """A relay as the pipeline is told of it."""
    path = folder / "token"
    path.write_text(relay.token())
    return Place(relay.url, path.read_text().strip(), patience_s, str(path))


@contextmanager
def running_damaged(data: Path) -> Iterator[RunningRelay]:
    """A relay that runs on a database that breaks its rules, which is the point: what looks at it in the end has to say so."""
    with ExitStack() as stack:
        relay = stack.enter_context(running(data))
        yield relay  # what its user asserts is none of this
        closing = stack.pop_all()
    with pytest.raises(AssertionError):
        closing.close()


def run(
    spark: SparkSession,
    path: Path,
    relay: Place,
    devices: Sequence[Place] = (),
    *,
    sources: Sequence[plan.Source] | None = None,
    full: bool = True,
    step: Step[Any] = plainly,
    entries_max: int = plan.BATCH_ENTRIES_MAX,
    tables: Mapping[str, Table] | None = None,
    at_once: int | None = None,
) -> Outcome:
    """One batch."""
    lake = Lake(path, step)
    lake.create()
    with lake.hold():
        if at_once is None:
            at_once = TABLES_AT_ONCE if step is plainly else 1  # who counts steps wants them in one order
        runner = Runner(lambda: spark, lake, tables or load(), batch_entries_max=entries_max, tables_at_once=at_once)
        return runner.run_batch(sources or plan.find_sources(relay, devices), full=full)


def prune(data: Path, through: int) -> None:
    """Let go of the first entries, as the relay does."""
    engine = open_relay(data / "relay.db")
    with engine.write() as transaction:
        log_id = history.head(transaction).log_id
        chain = history.read(transaction, through - 1, through)[0].chain
        anchor = sign_anchor(identity.read_key(data / identity.RELAY_KEY), log_id, through, chain, bytes(32))
        history.prune(transaction, 0, through, bytes.fromhex(anchor.sig))
    engine.close()


def unread(origin: str, log_id: bytes, seq: int) -> bytes | None:
    """The chain of an entry in a lake that has none."""
    return None


def shelf_of(path: Path, tables: Mapping[str, Table] | None = None) -> Shelf:
    return Shelf(Lake(path), tables or load())


def findings(path: Path, tables: Mapping[str, Table] | None = None) -> list[tuple[str, str]]:
    """Kind and key of everything that the last batch knows to be wrong or odd."""
    shelf = shelf_of(path, tables)
    return [(row["kind"], row["key"]) for row in _all_findings(shelf)]


def violations(path: Path) -> list[tuple[str, str, str]]:
    """What breaks a rule."""
    shelf = shelf_of(path)
    return [(row["kind"], row["key"], row["detail"]) for row in _all_findings(shelf) if row["is_violation"]]


def _all_findings(shelf: Shelf) -> list[dict[str, Any]]:
    found = shelf.findings(shelf.last_run().versions)
    return found.first(found.count().all)


def contents(
    path: Path, tables: Mapping[str, Table] | None = None, *, without: Sequence[str] = ("run", "certificate")
) -> dict[str, list[str]]:
    """All rows of all tables, as sorted text."""
    shelf = shelf_of(path, tables)
    versions = shelf.last_run().versions
    return {
        name: sorted(str(row) for row in shelf.query(name, versions.get(name), "SELECT * FROM {rows}"))
        for name, table in shelf.tables.items()
        if table.is_stored and name not in without
    }


def with_what_they_need(*names: str) -> dict[str, Table]:
    """Some tables, and all that they are computed from."""
    every = load()
    wanted = {"history", *names}
    while True:
        needed = {table_of(one) for name in wanted for one in every[name].inputs} - {None}
        needed |= {one for name in wanted for one in needs_of(every, every[name])}
        if needed <= wanted:
            return {name: table for name, table in every.items() if name in wanted}
        wanted |= {name for name in needed if name is not None}
