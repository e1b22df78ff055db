"""One SQLite library per process. A second one is shown to break the locks of the first, and ours is shown never to load."""

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]

INTRUDER = """
    import apsw, sys
    intruder = apsw.Connection(sys.argv[1])
    intruder.execute("PRAGMA busy_timeout=0")
    try:
        intruder.execute("BEGIN IMMEDIATE; ROLLBACK")
        print("got in")
    except apsw.BusyError:
        print("kept out")
"""

# A write transaction is open in this process. Does another process stay out of it, before and after `meddle`?
HOLDER = """
    import subprocess, sys
    from holdfast import OperationLog
    from holdfast.device.database import open_to_read
    from holdfast.store.sqlite import SqliteEngine

    path, intruder = sys.argv[1:]

    def ask():
        return subprocess.run([sys.executable, "-c", intruder, path], capture_output=True, text=True).stdout.strip()

    def second_library():
        import sqlite3
        connection = sqlite3.connect(path)
        connection.execute("SELECT count(*) FROM operation_log").fetchall()
        connection.close()

    def our_own_reader():
        reader = open_to_read(path)
        with reader.read() as transaction:
            transaction.rows("SELECT count(*) FROM operation_log")
        reader.close()

    OperationLog(path).close()
    engine = SqliteEngine(path)
    engine.prepare()
    with engine.write() as transaction:
        before = ask()
        {meddle}()
        print(before, "then", ask())
"""


def _run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_second_library_drops_the_locks_of_the_first(path: Path) -> None:
    """If this ever fails the danger is gone, and so is the reason for the rule."""
    intruder = textwrap.dedent(INTRUDER)
    assert _run(HOLDER.replace("{meddle}", "second_library"), str(path), intruder) == "kept out then got in"


def test_a_second_connection_of_ours_keeps_them(path: Path) -> None:
    assert (
        _run(HOLDER.replace("{meddle}", "our_own_reader"), str(path), textwrap.dedent(INTRUDER))
        == "kept out then kept out"
    )


WATCHED = """
    import os, sys
    seen = []
    folder = sys.argv[1]

    def watch(event, arguments):
        if event.startswith("sqlite3"):
            seen.append((event, arguments))
        if event == "open" and str(arguments[0]).startswith(folder + "/"):
            seen.append((event, arguments))

    sys.addaudithook(watch)
    from holdfast import OperationLog
    path = folder + "/log"
    with OperationLog(path) as log, OperationLog(path) as second:
        log.append_next(b"a" * 32, b"x")
        second.append_next(b"a" * 32, b"y")
        log.mark_delivered(b"a" * 32, 0)
        log.entries_from(b"a" * 32, 0), log.outbox(), log.max_sequence()
        log.backup(folder + "/copy")
        OperationLog(folder + "/copy").close()
        for command in (["check"], ["log", "list"], ["log", "outbox"]):
            sys.argv = ["holdfast", *command, path]
            try:
                from holdfast.cli import main
                main()
            except SystemExit as end:
                assert not end.code, end.code
    loaded = {"sqlite3", "_sqlite3"} & set(sys.modules)
    made = [e for e in seen if os.path.basename(e[1][0]).startswith(".") and e[1][2] & os.O_EXCL]
    print("SEEN", sorted(loaded), [e for e in seen if e not in made], len(made))
"""


def test_our_code_opens_the_file_through_one_library_only(tmp_path: Path) -> None:
    """A file is opened by hand once, when it is made, before it has its name; never after that."""
    last = _run(WATCHED, str(tmp_path)).splitlines()[-1]
    assert last == "SEEN [] [] 2"
