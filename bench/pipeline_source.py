"""The Spark source against Spark's own reader of Parquet files: the same rows, to nowhere."""

import time
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # likewise

from bench import results
from holdfast.pipeline import pages
from holdfast.pipeline.pages import Place
from holdfast.pipeline.session import SessionSettings, open_session
from holdfast.pipeline.source import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS = 7  # Java is slow at first, whatever it reads
FIRST_RUNS = 3
"""How many sessions begin with each way to read: who reads once never meets a warm Java."""
MEMORY_MB = 4096
PREPARED_ROWS = 1_000_000
"""What is read from files has at least so many rows, a small history many times over: else starting to read is all that is measured."""
PAGE_ROWS = 100_000
BATCH_ROWS = 10_000
ROWS_MAX = 2_000_000


def compare(relay: Place) -> dict[str, Any]:
    """Thousand rows a second of each way to read a relay's history, and what part of Parquet's that is."""
    head = pages.read_head(relay)
    live_rows = min(head.seq, ROWS_MAX)
    with TemporaryDirectory() as folder:
        prepared, parquet = Path(folder) / "history.arrow", f"{folder}/history"
        rows = _prepare(relay, live_rows, head.log_id, prepared)
        spark = open_session(SessionSettings(memory_mb=MEMORY_MB), Path(folder) / "spark")
        register(spark)
        with _served(prepared, head.log_id) as url:
            _source(spark, url, None, rows).write.parquet(parquet)
            rounds = {"parquet": _speeds(lambda: spark.read.parquet(parquet), rows)}
            rounds["prepared"] = _speeds(lambda: _source(spark, url, None, rows), rows)
        rounds["live"] = _speeds(lambda: _source(spark, relay.url, relay.token_file, live_rows), live_rows)
        spark.stop()
        with _served(prepared, head.log_id) as url:
            first = _firsts(
                {
                    "parquet": (parquet, None, rows),
                    "prepared": (url, None, rows),
                    "live": (relay.url, relay.token_file, live_rows),
                }
            )
    fastest = {name: max(speeds) for name, speeds in rounds.items()}
    ratios = {f"{name}_ratio": round(fastest[name] / fastest["parquet"], 2) for name in ("prepared", "live")}
    told = {f"{name}_rows_per_s": round(speed) for name, speed in fastest.items()}
    about = {"rows": rows, "live_rows": live_rows, "at": results.now()}
    return {**about, **told, **ratios, "rounds": rounds, "first": first}


def _firsts(ways: dict[str, tuple[str, str | None, int]]) -> dict[str, Any]:
    """The same of the first read of sessions, in turn; the middle one of each way counts."""
    speeds: dict[str, list[int]] = {name: [] for name in ways}
    for _ in range(FIRST_RUNS):
        for name, way in ways.items():
            with get_context("spawn").Pool(1) as process:
                speeds[name].append(process.apply(_first_read, way))
    middle = {name: sorted(found)[len(found) // 2] for name, found in speeds.items()}
    ratios = {f"{name}_ratio": round(middle[name] / middle["parquet"], 2) for name in ("prepared", "live")}
    return {**{f"{name}_rows_per_s": speed for name, speed in middle.items()}, **ratios, "rounds": speeds}


def _first_read(where: str, token_file: str | None, rows: int) -> int:
    """Rows a second of one read in a session of its own; to start it does not count."""
    with TemporaryDirectory() as folder:
        spark = open_session(SessionSettings(memory_mb=MEMORY_MB), Path(folder))
        register(spark)
        is_source = where.startswith("http")
        (speed,) = _speeds(
            lambda: _source(spark, where, token_file, rows) if is_source else spark.read.parquet(where), rows, 1
        )
        spark.stop()
    return speed


def _source(spark: "SparkSession", url: str, token_file: str | None, rows: int) -> "DataFrame":
    reader = spark.read.format("holdfast").option("url", url).option("table", "history").option("until", str(rows))
    return (reader if token_file is None else reader.option("token_file", token_file)).load()


def _speeds(read: "Callable[[], DataFrame]", rows: int, runs: int = RUNS) -> list[int]:
    """Rows a second of some runs."""
    speeds = []
    for _ in range(runs):
        began_at = time.monotonic()
        read().write.format("noop").mode("overwrite").save()
        speeds.append(round(rows / (time.monotonic() - began_at)))
    return speeds


def _prepare(relay: Place, rows: int, log_id: bytes, path: Path) -> int:
    """The history as one Arrow file, several times over where it is short; how many rows it has."""
    found = list(pages.read_pages(relay, "history", 0, rows, None, log_id))
    batches, times = [batch for page in found for batch in page.batches], -(-PREPARED_ROWS // rows)
    place = found[0].schema.get_field_index("seq")
    with pa.ipc.new_file(str(path), found[0].schema) as writer:
        for number in range(times):
            for batch in batches:
                seq = pc.add(batch.column(place), number * rows)
                writer.write_batch(batch.set_column(place, found[0].schema.field(place), seq))
    return rows * times


class _served:  # noqa: N801 - used as a function
    """A process that serves an Arrow file as a relay would."""

    def __init__(self, path: Path, log_id: bytes) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(str(path), log_id, theirs), daemon=True)
        self._ours = ours

    def __enter__(self) -> str:
        self._process.start()
        return f"http://127.0.0.1:{self._ours.recv()}"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def _serve(path: str, log_id: bytes, told: Connection) -> None:
    table = pa.ipc.open_file(pa.memory_map(path)).read_all()

    @cache  # what is measured is who reads: to make a page ready is done once
    def page(after: int, reached: int, columns: str | None) -> tuple[int, pa.Buffer]:
        found = table.slice(after, reached - after)
        if columns is not None:
            found = found.select(columns.split(","))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found.schema) as writer:
            writer.write_table(found, max_chunksize=BATCH_ROWS)
        return len(found), sink.getvalue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            after, until = int(query["after"]), int(query["until"])
            reached = min(until, after + PAGE_ROWS)
            rows, body = page(after, reached, query.get("columns"))
            headers = {
                "Content-Length": len(body),
                "Holdfast-Log-Id": log_id.hex(),
                "Holdfast-As-Of-Seq": len(table),
                "Holdfast-Until": until,
                "Holdfast-Next-After": reached,
                "Holdfast-Rows": rows,
            }
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.send(server.server_address[1])
    server.serve_forever()
