"""The demo's end: Spark reads every history into a lake and certifies it, and then finds what we took out of the relay."""

import json
import os
import signal
from contextlib import closing
from pathlib import Path

from holdfast.cli.demo_mesh import World, command
from holdfast.cli.demo_story import chapter, console, fact, verdict
from holdfast.cli.output import ExitCode
from holdfast.store.sqlite import SqliteEngine


def tell(world: World) -> None:
    """The chapters of the proof."""
    lake, token = world.folder / "lake", world.folder / "token"
    text = command("relay", "token", "--data", str(world.data)).stdout
    token.touch(mode=0o600)
    token.write_text(text)
    _certify(world, lake, token)
    _tamper(world, lake, token)


def _certify(world: World, lake: Path, token: Path) -> None:
    chapter(
        "Proof", "Spark reads the histories of the relay and of both devices, and rebuilds the fate of every message."
    )
    code = _run(world, lake, token)
    report = json.loads(command("pipeline", "report", "--lake", str(lake), "--json").stdout)
    balance = report["balance"]
    fact(", ".join(f"{name} {count}" for name, count in balance.items() if count))
    verdict(
        code == ExitCode.OK and not report["findings"], "no violation, and the balance holds", f"{report['findings']}"
    )
    done = command("pipeline", "verify", "--lake", str(lake), check=False)
    verdict(done.returncode == ExitCode.OK, "the signed certificate verifies against the lake's own rows", done.stderr)


def _tamper(world: World, lake: Path, token: Path) -> None:
    chapter("Tampering", "We stop the relay and delete one delivery from its database, behind its back.")
    world.stop_relay(signal.SIGTERM)
    seq = _delete_a_delivery(world.data / "relay.db")
    world.start_relay()
    code = _run(world, lake, token)
    findings = json.loads(command("pipeline", "report", "--lake", str(lake), "--json").stdout)["findings"]
    fact(f"the row that went was the delivery of entry {seq}")
    for finding in findings:
        fact(f"{finding['kind']}: {finding['key']}")
    verdict(code == ExitCode.VIOLATION and len(findings) == 1, "found, and nothing else", f"status {code}: {findings}")


def _run(world: World, lake: Path, token: Path) -> int:
    """One batch of the pipeline; its exit status."""
    devices = [word for home in (world.alice, world.bob) for word in ("--device", str(home / "daemon.sock"))]
    with console.status("  Spark is at work …"):
        done = command(
            *("pipeline", "run", "--relay", world.url, "--lake", str(lake), "--once", "--token-file", str(token)),
            *devices,
            check=False,
            PYTHONWARNINGS=os.environ.get("PYTHONWARNINGS", "ignore"),
        )
    if done.returncode not in (ExitCode.OK, ExitCode.VIOLATION):
        verdict(False, "", done.stderr.strip() or done.stdout.strip())
    return done.returncode


def _delete_a_delivery(path: Path) -> int:
    """Take a row out of a relay's database, as somebody who can write to the file might."""
    with closing(SqliteEngine(path)) as engine, engine.write() as transaction:
        ((seq,),) = transaction.rows("SELECT min(seq) FROM delivery WHERE is_receipt = 0")
        transaction.run("DELETE FROM delivery WHERE seq = :seq", {"seq": seq})
    return int(seq)
