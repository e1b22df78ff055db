"""The demo's end: Spark reads every history into a lake and certifies it, and then finds what we took out of the relay."""

import importlib.util
import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast.cli.demo_world import Missing, World, command, hold
from holdfast.cli.output import ExitCode
from holdfast.store.sqlite import SqliteEngine

FOUND_AS = "delivery_missing"
RESTORED_AS = "sender_reset"
BATCH_TIMEOUT_S = 1800.0  # Spark on a busy machine takes its time


def certify(world: World) -> str:
    if importlib.util.find_spec("pyspark") is None:
        raise Missing("the proof needs Spark: `make pipeline` installs it, and `make demo` does so by itself")
    token = world.folder / "token"
    token.touch(mode=0o600)
    token.write_text(command("relay", "token", "--data", str(world.data)).stdout)
    code, report = _batch(world)
    found = _places(report, is_violation=True)
    hold(code == ExitCode.OK and not found, f"status {code}, violations {found}")
    restored = {kind for kind, _ in _places(report, is_violation=False)}
    hold(restored == {RESTORED_AS}, f"beside Carol's new beginning it noticed {restored}")
    command("pipeline", "verify", "--lake", str(world.lake))
    balance = report["balance"]
    hold(balance["delivered"] > len(world.sent), f"the balance is {balance}")
    counts = ", ".join(f"{count:,} {name}" for name, count in balance.items() if count)
    return (
        f"{counts}; no violation, and the signed certificate verifies; Carol's restored home is noticed ({RESTORED_AS})"
    )


def find_what_was_taken(world: World) -> str:
    """Somebody who can write to the relay's file deletes a row while the relay is down."""
    world.stop_relay(signal.SIGTERM)
    place = _delete_a_delivery(world.data / "relay.db")
    world.start_relay()
    code, report = _batch(world)
    found = _places(report, is_violation=True)
    hold(code == ExitCode.VIOLATION and found == [(FOUND_AS, place)], f"status {code}: {found}; taken was {place}")
    return f"{FOUND_AS}: {place}, and nothing else"


def _places(report: dict[str, Any], *, is_violation: bool) -> list[tuple[str, str]]:
    """What was found, by kind and place: what breaks a rule, or what is only worth knowing."""
    return [(one["kind"], one["key"]) for one in report["findings"] if one["is_violation"] is is_violation]


def _batch(world: World) -> tuple[int, dict[str, Any]]:
    """One run of the pipeline: its exit status, and what it then reports."""
    devices = [word for home in world.homes for word in ("--device", str(home / "daemon.sock"))]
    done = command(
        *("pipeline", "run", "--relay", world.url, "--lake", str(world.lake), "--once"),
        *("--token-file", str(world.folder / "token")),
        *devices,
        is_needed=False,
        environment={"PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore")},
        timeout_s=BATCH_TIMEOUT_S,
    )
    said = done.stderr.strip() or done.stdout.strip()
    hold(done.returncode in (ExitCode.OK, ExitCode.VIOLATION), f"the pipeline ended with {done.returncode}: {said}")
    return done.returncode, json.loads(command("pipeline", "report", "--lake", str(world.lake), "--json").stdout)


def _delete_a_delivery(path: Path) -> str:
    """Take a row out of a relay's database, as somebody who can write to the file might; what the lake calls its place."""
    with closing(SqliteEngine(path)) as engine, engine.write() as transaction:
        ((mesh, member, seq),) = transaction.rows(
            "SELECT mesh, member, seq FROM delivery WHERE is_receipt = 0 ORDER BY seq LIMIT 1"
        )
        transaction.run(
            "DELETE FROM delivery WHERE mesh = :m AND member = :r AND seq = :s", {"m": mesh, "r": member, "s": seq}
        )
    return f"{mesh}/{member}/{seq}"
