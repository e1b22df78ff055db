"""The operation log: 64 writers who share its commits, beside litequeue set to sync as we do.

.venv/bin/python -m bench.log
"""

import importlib.metadata
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.load import Measured, _cpu_s
from bench.peers import Absent
from bench.rounds import SECONDS, Contest, in_rounds
from bench.syncs import syncs_of_self

WRITERS = 64
BLOB = b"x" * 300
ALONE = 100

Put = Callable[[], None]


def main() -> None:
    contest = Contest("log", "entries appended a second by 64 threads")
    turns = {"log": lambda: _turn(contest, "log", "Holdfast operation log")}
    try:
        contest.of("litequeue", "litequeue, synchronous FULL").more["version"] = _version("litequeue")
        turns["litequeue"] = lambda: _turn(contest, "litequeue", "litequeue, synchronous FULL")
    except Absent as absent:
        contest.without(absent)
    in_rounds(turns)
    for key in turns:
        contest.those[key].more["syncs_per_answer"] = _apart(_alone, key)
    contest.ratio("at least 8 times litequeue", "log", "litequeue", 8)
    contest.finish()


def _version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        raise Absent(package) from None


def _turn(contest: Contest, key: str, name: str) -> None:
    contest.of(key, name).add(_apart(_write, key))


def _apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """In a process of its own: our library and the interpreter's own SQLite do not meet."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(work, arguments)


def _write(key: str) -> Measured:
    with tempfile.TemporaryDirectory(prefix="hfbench") as folder:
        make = MAKERS[key](Path(folder))
        latencies: list[list[float]] = [[] for _ in range(WRITERS)]
        began = time.perf_counter()
        ends = began + SECONDS
        used = _cpu_s()
        threads = [threading.Thread(target=_one, args=(make, ends, found)) for found in latencies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - began
        every = [latency for found in latencies for latency in found]
        return Measured(len(every), took, every, (_cpu_s() - used) / took)


def _one(make: Callable[[], Put], ends: float, found: list[float]) -> None:
    put = make()
    while (began := time.perf_counter()) < ends:
        put()
        found.append((time.perf_counter() - began) * 1000)


def _alone(key: str) -> float | None:
    """Syncs for each entry of one writer."""
    with tempfile.TemporaryDirectory(prefix="hfbench") as folder:
        put = MAKERS[key](Path(folder))()
        return syncs_of_self(lambda: [put() for _ in range(ALONE)])


def _log(folder: Path) -> Callable[[], Put]:
    from holdfast import OperationLog

    log = OperationLog(folder / "log.db")
    return lambda: lambda: _append(log)


def _append(log: Any) -> None:
    log.append_next(bytes(32), BLOB)


def _litequeue(folder: Path) -> Callable[[], Put]:
    import sqlite3

    from litequeue import LiteQueue

    LiteQueue(str(folder / "queue.db"))
    text = BLOB.decode()

    def make() -> Put:
        queue = LiteQueue(str(folder / "queue.db"), timeout=60)
        queue.conn.execute("PRAGMA synchronous=FULL")  # it sets NORMAL itself, which may lose what it said yes to
        queue.conn.execute("PRAGMA busy_timeout=60000")

        def put() -> None:
            while True:
                try:
                    queue.put(text)
                except sqlite3.OperationalError:  # busy all the same: tried again, as its user would
                    continue
                return

        return put

    return make


MAKERS: dict[str, Callable[[Path], Callable[[], Put]]] = {"log": _log, "litequeue": _litequeue}

if __name__ == "__main__":
    main()
