"""`holdfast generate`: what it makes keeps every rule of a relay and of a device, and the same seed makes the same."""

import json
import os
import stat
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.check import inspect
from holdfast.device.home import Home
from holdfast.protocol import event, receipt
from holdfast.protocol.history import Entry, Kind
from holdfast.relay.database import open_to_read
from holdfast.relay.identity import Identity
from holdfast.relay.settings import load
from holdfast.store import history
from holdfast.store.sqlite import SqliteEngine

END = "2026-06-01"


def _generate(out: Path, *more: object, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "generate", "--out", str(out), "--json", *map(str, more)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    made: dict[str, Any] = json.loads(done.stdout if code == 0 else done.stderr)
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated") / "world"
    _generate(out, "--messages", 1500, "--seed", 7, "--ends-at", END)
    return out


@pytest.fixture(scope="module")
def entries(made: Path) -> list[Entry]:
    with closing(open_to_read(made / "relay" / "relay.db")) as engine:
        return list(history.walk(engine))


def _head(path: Path) -> history.Head:
    engine = SqliteEngine(path, read_only=True)
    with closing(engine), engine.read() as transaction:
        return history.head(transaction)


def _device_entries(made: Path) -> list[Entry]:
    found: list[Entry] = []
    for home in sorted((made / "homes").iterdir()):
        with closing(SqliteEngine(home / "device.db", read_only=True)) as engine:
            found += history.walk(engine)
    return found


def test_every_rule_of_relay_and_devices_holds(made: Path) -> None:
    databases = [made / "relay" / "relay.db", *(home / "device.db" for home in (made / "homes").iterdir())]
    assert len(databases) == 5
    for path in databases:
        assert inspect(path)[1] == []


def test_the_relay_has_seen_everything_that_can_become_of_a_message(entries: list[Entry]) -> None:
    kinds = {entry.kind for entry in entries}
    outcomes = {outcome for entry in entries for _, outcome in entry.recipients}
    assert {"accepted", "admin", "receipt", "delivered", "expired", "dropped", "pruned", "dedupe_expired"} <= kinds
    assert outcomes == {"queued", "full", "blocked"}
    assert {entry.was_stored for entry in entries if entry.kind is Kind.DELIVERED} == {True, False}


def test_devices_have_retried_died_given_way_and_received(made: Path) -> None:
    seen = Counter((entry.kind.value, entry.reason) for entry in _device_entries(made))
    assert {"enqueued", "attempted", "relayed", "dead", "aborted", "stored", "applied", "receipt"} <= {
        kind for kind, _ in seen
    }
    assert seen["attempted", "restarted"] + seen["attempted", "unreachable"] > 0


def test_homes_have_in_their_inbox_what_their_history_says_with_the_receipts_that_they_owe(made: Path) -> None:
    for home in (made / "homes").iterdir():
        with closing(SqliteEngine(home / "device.db", read_only=True)) as engine:
            told = Counter(str(entry.kind) for entry in history.walk(engine))
            with engine.read() as transaction:
                rows = transaction.rows(
                    "SELECT count(*), count(applied_at), count(parked_at), count(receipt_sequence) FROM inbox"
                )
        assert rows == [(told["stored"], told["applied"], told["parked"], told["stored"])]
        assert told["stored"] > told["applied"] > 0


def test_receipts_are_truly_signed_and_name_messages_that_were_delivered(entries: list[Entry]) -> None:
    delivered = {
        (entry.event_id, entry.recipient) for entry in entries if entry.kind is Kind.DELIVERED and entry.event_id
    }
    receipts = [entry for entry in entries if entry.kind is Kind.RECEIPT]
    assert len(receipts) > 100
    for entry in receipts:
        signed = event.decode(entry.detail)
        event.verify(signed)
        for line in receipt.from_event(signed).messages:
            assert (bytes.fromhex(line.message_id), entry.sender) in delivered


def test_one_event_id_is_one_message(entries: list[Entry]) -> None:
    accepted = [entry for entry in entries if entry.kind in (Kind.ACCEPTED, Kind.RECEIPT, Kind.ADMIN)]
    assert len({entry.event_id for entry in accepted}) == len(accepted)
    assert len({(entry.mesh, entry.sender, entry.epoch, entry.sequence) for entry in accepted}) == len(accepted)


def test_the_same_seed_and_end_make_the_same_histories(made: Path, tmp_path: Path) -> None:
    _generate(tmp_path / "again", "--messages", 1500, "--seed", 7, "--ends-at", END)
    _generate(tmp_path / "other", "--messages", 1500, "--seed", 8, "--ends-at", END)
    for path in ("relay/relay.db", "homes/member-0/device.db"):
        assert _head(tmp_path / "again" / path) == _head(made / path)
        assert _head(tmp_path / "other" / path) != _head(made / path)


def test_the_directory_is_one_that_a_relay_can_run_on(made: Path) -> None:
    identity = Identity.read(made / "relay")
    settings = load(made / "relay" / "relay.toml", {})
    membership = Home(made / "homes" / "member-0").membership()
    assert settings.limits.queue_messages_max == 30
    assert membership is not None
    assert membership.relay_pubkey == identity.pubkey
    assert stat.S_IMODE((made / "homes" / "member-0").stat().st_mode) == 0o700


def test_it_says_that_message_events_are_used_again(made: Path, tmp_path: Path) -> None:
    told = _generate(tmp_path / "few", "--messages", 1)
    shown = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "generate", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"},
    ).stdout
    assert "used again and again" in told["note"]
    assert "used again and again" in shown


def test_a_directory_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("keep")
    refused = _generate(tmp_path / "there", "--messages", 10, code=4)
    assert refused["error"] == "file_there"
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mine"]


def test_two_devices_in_one_mesh_are_enough(tmp_path: Path) -> None:
    made = _generate(tmp_path / "two", "--messages", 200, "--devices", 2, "--homes", 2, "--seed", 3)
    assert len(made["homes"]) == 2
    for path in (tmp_path / "two" / "relay" / "relay.db", *(Path(home) / "device.db" for home in made["homes"])):
        assert inspect(path)[1] == []
