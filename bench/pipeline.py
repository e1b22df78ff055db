"""How fast the pipeline is: its source against Spark's own reader, its tables against DuckDB, and what is new against everything.

    .venv/bin/python bench/pipeline.py [--entries 1000000 5000000] [--many] [--work DIR] [--skip-source]

A relay's data is generated once for each size and kept in DIR (about 0.7 GB for a million entries); `--many` adds 20 million. A lake is
built from a relay and two daemons that run: 99 % of all entries, then the last one, then nothing new. DuckDB answers the questions
of the tables from the lake's own files. Results go to bench/results.json, and from there into docs/pipeline.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import pipeline_source, pipeline_world, results  # found by the line above
from bench.pipeline_questions import QUESTIONS, UNLIKE
from holdfast.pipeline import plan
from holdfast.pipeline.lake import Lake, live_files
from holdfast.pipeline.pages import Place
from holdfast.pipeline.runner import Runner
from holdfast.pipeline.session import SessionSettings, open_session
from holdfast.pipeline.shelf import Shelf, relation
from holdfast.pipeline.source import register
from holdfast.pipeline.table import load

MANY = 20_000_000
HOMES = 2
MEMORY_MB = 4_096
NEW_SHARE = 0.01
RUNS = 2  # of a question; the faster one counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--many", action="store_true", help=f"also {MANY:,} entries")
    parser.add_argument("--work", type=Path, default=Path("bench/work"))
    parser.add_argument("--skip-source", action="store_true")
    parser.add_argument("--build", nargs="+", help=argparse.SUPPRESS)  # LAKE TOKEN URL SOCKET…: a process of its own
    asked = parser.parse_args()
    if asked.build:
        lake, token_file, relay, *devices = asked.build
        print(json.dumps(build(Path(lake), token_file, relay, devices)))
        return
    asked.work.mkdir(parents=True, exist_ok=True)
    before = results.load().get("pipeline", {})
    sizes = dict(before.get("sizes", {}))
    figures: dict[str, Any] = {name: before[name] for name in ("source",) if name in before}
    for entries in [*asked.entries, *([MANY] if asked.many else [])]:
        sizes[str(entries)], source = one_size(asked.work, entries, with_source=not asked.skip_source)
        if source is not None:
            figures["source"] = source
        results.record("pipeline", {**figures, "sizes": sizes})
        print(json.dumps({entries: sizes[str(entries)], "source": source}, indent=2))


def one_size(work: Path, entries: int, *, with_source: bool) -> tuple[dict[str, Any], dict[str, Any] | None]:
    world = pipeline_world.generated(work, entries, HOMES)
    lake = work / f"lake-{entries}-{time.time_ns()}"
    with ExitStack() as stack:
        data = str(world / "relay")
        relay = stack.enter_context(pipeline_world.running("relay", "run", "--data", data, "--port", "0"))
        homes = sorted((world / "homes").iterdir())
        daemons = [stack.enter_context(pipeline_world.running("daemon", "run", home=home)) for home in homes]
        token_file = work / "token"
        token_file.write_text(pipeline_world.token(world / "relay"))
        place = [str(lake), str(token_file), relay["url"], *(f"unix:{one['socket']}" for one in daemons)]
        seconds, peak_bytes, told = pipeline_world.timed([sys.executable, __file__, "--build", *place])
        found = {
            **json.loads(told.splitlines()[-1]),
            "peak_mb": round(peak_bytes / 2**20),
            "process_s": round(seconds, 1),
        }
        command = [
            sys.executable,
            "-m",
            "holdfast.cli",
            "pipeline",
            "run",
            "--relay",
            relay["url"],
            "--lake",
            str(lake),
        ]
        again, _, _ = pipeline_world.timed([*command, "--token-file", str(token_file), "--touched", "--json"])
        found["nothing_new_process_s"] = round(again, 1)
        source = None
        if with_source:
            source = pipeline_source.compare(Place(relay["url"], token_file.read_text(), 60.0, str(token_file)))
    return {**found, **against_duckdb(lake, found["tables_s"])}, source


def build(path: Path, token_file: str, relay: str, devices: list[str]) -> dict[str, Any]:
    """Make a lake, in this process: seconds of everything, of each table, of what is new, and of nothing."""
    began_at = time.monotonic()
    lake, tables_s = Lake(path, step=_stopwatch(spent := {})), {}
    lake.create()
    token = Path(token_file).read_text().strip()
    places = [Place(relay, token, 60.0, token_file), *(Place(one, None, 60.0) for one in devices)]
    sources = plan.find_sources(places[0], places[1:])
    spark = open_session(SessionSettings(memory_mb=MEMORY_MB), lake.private)
    register(spark)
    found: dict[str, Any] = {"start_s": round(time.monotonic() - began_at, 1)}
    total = sum(source.head.seq for source in sources)
    left = round(total * (1 - NEW_SHARE))
    began_at = time.monotonic()
    while left > 0:
        outcome = _batch(spark, lake, sources, min(left, plan.BATCH_ENTRIES_MAX), full=False)
        left -= outcome
    found["entries"] = total
    found["build_s"] = round(time.monotonic() - began_at, 1)
    tables_s.update({name: round(seconds, 2) for name, seconds in sorted(spent.items(), key=lambda one: -one[1])})
    for name, full in (("new_s", False), ("nothing_new_s", False), ("compare_all_s", True)):
        began_at = time.monotonic()
        _batch(spark, lake, sources, plan.BATCH_ENTRIES_MAX, full=full)
        found[name] = round(time.monotonic() - began_at, 1)
    spark.stop()
    return {**found, "tables_s": tables_s}


def _batch(spark: Any, lake: Lake, sources: list[plan.Source], entries_max: int, *, full: bool) -> int:
    outcome = Runner(spark, lake, load(), batch_entries_max=entries_max).run_batch(sources, full=full)
    if outcome.violations:
        raise RuntimeError(f"batch {outcome.number} found {outcome.violations} violations")
    return outcome.entries


def _stopwatch(spent: dict[str, float]) -> Callable[[str, Callable[[], Any]], Any]:
    """Charges the time since the last step to the table that a step is of: planning it is part of it."""
    last = [time.monotonic()]

    def step(name: str, action: Callable[[], Any]) -> Any:
        found = action()
        now = time.monotonic()
        table = name.rpartition(" ")[2]
        spent[table] = spent.get(table, 0.0) + now - last[0]
        last[0] = now
        return found

    return step


def against_duckdb(lake: Path, tables_s: dict[str, float]) -> dict[str, Any]:
    """Seconds in which DuckDB answers each question from the lake's files and writes the rows down, and the ratios."""
    tables = load()
    shelf = Shelf(Lake(lake), tables)
    versions = shelf.last_run().versions
    handle = Lake(lake).delta("history", versions["history"])
    if handle is None:
        raise RuntimeError("there is no lake")
    connection = duckdb.connect(str(lake / ".holdfast" / "bench.duckdb"))
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE VIEW history AS SELECT * FROM {relation(tables['history'], live_files(handle))}")  # noqa: S608 - our own files
    seconds = {}
    for name, question in QUESTIONS.items():
        seconds[name] = min(_answered(connection, lake, name, question) for _ in range(RUNS))
        rows = connection.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0]  # noqa: S608 - our own names
        if name in versions and name not in UNLIKE and rows != shelf.rows(name, versions[name]):
            raise RuntimeError(f"{name}: DuckDB has {rows} rows, the lake {shelf.rows(name, versions[name])}")
    connection.close()
    # What only some tables pass on to others belongs to those that are asked for.
    spark_s = {name: tables_s.get(name, 0.0) for name in QUESTIONS}
    return {
        "duckdb_s": {name: round(one, 2) for name, one in seconds.items()},
        "ratios": {name: round(spark_s[name] / one, 1) for name, one in seconds.items() if one > 0},
        "ratio": round(sum(spark_s.values()) / sum(seconds.values()), 1),
    }


def _answered(connection: duckdb.DuckDBPyConnection, lake: Path, name: str, question: str) -> float:
    target = lake / ".holdfast" / f"{name}.parquet"
    began_at = time.monotonic()
    connection.execute(f"COPY ({question}) TO '{target}' (FORMAT parquet, COMPRESSION zstd)")
    seconds = time.monotonic() - began_at
    connection.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM read_parquet('{target}')")  # noqa: S608 - our own names
    return seconds


if __name__ == "__main__":
    main()
