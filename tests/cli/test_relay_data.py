"""`holdfast relay token|stats|backup|restore` as an operator or a script runs them."""

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.relay import token
from holdfast.relay.database import open_to_read
from holdfast.relay.identity import Identity
from holdfast.relay.lock import hold
from holdfast.store import history
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.world import wall_clock
from tests.relay import scene
from tests.relay.running import running
from tests.terminal import typed

DAY = 86_400_000_000


def _holdfast(*arguments: object, code: int = 0) -> str:
    done = typed("relay", *arguments, environment={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"})
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def _json(*arguments: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_holdfast(*arguments, "--json"))
    return answer


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    Identity.load(made, os.urandom)
    scene.populated(made / "relay.db")
    return made


def _log_id(data: Path) -> str:
    with closing(open_to_read(data / "relay.db")) as engine, engine.read() as transaction:
        return history.head(transaction).log_id.hex()


def test_a_token_is_printed_alone_and_is_good_for_its_days(data: Path) -> None:
    pubkey = Identity.read(data).pubkey
    before = wall_clock()
    text = _holdfast("token", "--data", data).removesuffix("\n")
    assert token.verify(text, pubkey, before + 30 * DAY - 1) == "pipeline"
    answer = _json("token", "--data", data, "--consumer", "lake.2", "--days", 1)
    assert token.verify(answer["token"], pubkey, answer["expires_at"] - 1) == answer["consumer"] == "lake.2"
    assert before + DAY <= answer["expires_at"] <= wall_clock() + DAY


def test_stats_are_told_to_people_and_to_programs(data: Path) -> None:
    answer = _json("stats", "--data", data)
    assert (answer["log_id"], answer["seq"], answer["members"]) == (_log_id(data), 27, 3)
    assert answer["open_by_age"] == {
        "under_a_minute": 0,
        "under_an_hour": 0,
        "under_a_day": 0,
        "under_a_week": 0,
        "older": 0,
    }
    text = _holdfast("stats", "--data", data)
    assert f"log_id                      {_log_id(data)}" in text
    assert "last_accepted_at            2027-01-15T08:00:00.000Z" in text


def test_a_relay_is_backed_up_and_restored(data: Path, tmp_path: Path) -> None:
    backup, there = tmp_path / "backup", tmp_path / "there"
    said = _json("backup", backup, "--data", data)
    assert (said["backup"], said["log_id"], said["seq"]) == (str(backup), _log_id(data), 27)
    restored = _json("restore", backup, "--data", there)
    assert (restored["data"], restored["old_log_id"], restored["fork_seq"]) == (str(there), _log_id(data), 27)
    assert restored["log_id"] == _log_id(there) != _log_id(data)
    assert "secret keys" in _holdfast("backup", tmp_path / "again", "--data", there)
    assert _log_id(there) in _holdfast("restore", tmp_path / "again", "--data", tmp_path / "third")


FAILURES: dict[str, tuple[list[str], int, str]] = {
    "a token of no relay": (["token", "--data", "DIR/empty"], 3, "there is no such file"),
    "a token of no directory": (["token", "--data", "DIR/nothing"], 3, "there is no relay's data at"),
    "a token for no name": (["token", "--data", "DIR/data", "--consumer", "a b"], 2, "letters, digits"),
    "a token for no time": (["token", "--data", "DIR/data", "--days", "0"], 2, "'--days'"),
    "a token for ever": (["token", "--data", "DIR/data", "--days", "367"], 2, "'--days'"),
    "stats of no relay": (["stats", "--data", "DIR/empty"], 3, "there is no such file"),
    "a backup of no relay": (["backup", "DIR/b", "--data", "DIR/empty"], 3, "there is no such file"),
    "a backup over something": (["backup", "DIR/empty", "--data", "DIR/data"], 4, "exists already"),
    "a backup into nowhere": (["backup", "DIR/no/where", "--data", "DIR/data"], 3, "does not exist"),
    "a backup of what is broken": (["backup", "DIR/b", "--data", "DIR/broken"], 4, "queue"),
    "a restore of no backup": (["restore", "DIR/data", "--data", "DIR/new"], 1, "not a backup"),
    "a restore of nothing": (["restore", "DIR/nothing", "--data", "DIR/new"], 3, "there is no backup at"),
    "a restore over a relay": (["restore", "DIR/backup", "--data", "DIR/data"], 4, "exists already"),
    "a restore where a relay runs": (["restore", "DIR/backup", "--data", "DIR/running"], 5, "a relay is running"),
}


@pytest.fixture
def failing(data: Path, tmp_path: Path) -> Path:
    for name in ("empty", "running", "broken"):
        (tmp_path / name).mkdir()
    _holdfast("backup", tmp_path / "backup", "--data", data)
    Identity.load(tmp_path / "broken", os.urandom)
    scene.populated(tmp_path / "broken" / "relay.db")
    with closing(SqliteEngine(tmp_path / "broken" / "relay.db")) as engine, engine.write() as transaction:
        transaction.run("UPDATE member SET queue_count = queue_count + 1")
    return tmp_path


def test_a_failure_is_one_clear_message_and_its_exit_code(failing: Path) -> None:
    for name, (arguments, code, message) in FAILURES.items():
        before = sorted(path.name for path in failing.iterdir() if path.name != "new")
        with hold(failing / "running"):
            said = _holdfast(*(word.replace("DIR", str(failing)) for word in arguments), code=code)
        assert message in said, name
        assert sorted(path.name for path in failing.iterdir() if path.name != "new") == before, name


def test_a_relay_that_gets_another_key_for_its_database_says_so(tmp_path: Path) -> None:
    data = tmp_path / "relay"
    with running(data) as relay:
        assert "relay key made" not in relay.log_file.read_text()
    (data / "relay.key").rename(tmp_path / "relay.key")
    with running(data) as relay:
        (warned,) = [line for line in relay.log_file.read_text().splitlines() if "relay key made" in line]
    assert (json.loads(warned)["level"], json.loads(warned)["path"]) == ("warning", str(data / "relay.key"))
