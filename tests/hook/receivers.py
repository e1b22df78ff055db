"""The receiver as agents start it: a real process, a payload on stdin, and a look at what it left."""

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import holdfast
from holdfast.hook import database, intake
from holdfast.hook.intake import Intake
from holdfast.hook.store import Store
from holdfast.store.world import wall_clock

COMMAND = Path(holdfast.__file__).parent / "hook" / "command.py"
PATIENCE_S = 60.0


def command(home: Path, agent: str, *words: str) -> list[str]:
    """The installed command."""
    return [sys.executable, "-I", "-S", str(COMMAND), "--agent", agent, "--home", str(home), *words]


def run(
    home: Path, agent: str, payload: Any = None, *words: str, raw: bytes | None = None, **environment: str
) -> "subprocess.CompletedProcess[bytes]":
    """Fire one hook; whatever happens, nothing is on stdout."""
    said = raw if raw is not None else b"" if payload is None else json.dumps(payload).encode()
    done = subprocess.run(
        command(home, agent, *words),
        input=said,
        capture_output=True,
        env=os.environ | environment,
        timeout=PATIENCE_S,
    )
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    return done


def rows(home: Path, columns: str = "event_type", table: str = "hook_outbox", order: str = "id") -> list[Any]:
    """What is in the database; one column alone is not wrapped."""
    engine = database.opened(home / "hooks.db", wall_clock)
    try:
        with engine.read() as transaction:
            found = transaction.rows(f"SELECT {columns} FROM {table} ORDER BY {order}")
    finally:
        engine.close()
    return [row[0] if len(row) == 1 else row for row in found]


def take_in(home: Path) -> int:
    """Have in the database what receivers have said, as the worker does first of all."""
    store = Store(database.opened(home / "hooks.db", wall_clock), threaded=False)
    loop = asyncio.new_event_loop()
    try:
        with ThreadPoolExecutor(1) as another:  # the caller may have a loop of its own
            return another.submit(loop.run_until_complete, Intake(home, store).take_in()).result()
    finally:
        loop.close()
        store.close()


def stored(home: Path, columns: str = "event_type", table: str = "hook_outbox", order: str = "id") -> list[Any]:
    """What receivers have said, as rows."""
    take_in(home)
    return rows(home, columns, table, order)


def waiting(home: Path) -> int:
    """How much of the spool no worker has taken in."""
    engine = database.opened(home / "hooks.db", wall_clock)
    try:
        with engine.read() as transaction:
            return intake.waiting_bytes(home, intake.place(transaction))
    finally:
        engine.close()


def spooled(home: Path) -> bytes:
    path = home / "hooks.spool"
    return path.read_bytes() if path.exists() else b""
