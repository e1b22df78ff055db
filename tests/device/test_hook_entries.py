"""Hook entries in the device's history: each once, however often it is reported."""

from pathlib import Path

import pytest

from holdfast import OperationLog
from holdfast.cli.check import inspect
from holdfast.device import hook_entries
from holdfast.protocol import hook_entry
from holdfast.protocol.history import Draft
from holdfast.protocol.hook_entry import HookDetail
from holdfast.protocol.hook_row import HookStatus
from holdfast.store import history
from holdfast.store.engine import ConstraintViolated
from holdfast.store.sqlite import SqliteEngine

DETAIL = HookDetail(
    agent="codex", session_id="s é", event_type="agent_stop", event_name="Stop", received_at=7, attempts=20, error="no"
)


def drafts(number: int) -> list[Draft]:
    event_id = f"{number:032x}"
    return [hook_entry.received(event_id, 5, DETAIL), hook_entry.ended(event_id, HookStatus.DEAD, DETAIL)]


@pytest.fixture
def engine(path: Path) -> SqliteEngine:
    OperationLog(path).close()
    return SqliteEngine(path)


def test_what_is_reported_again_is_not_appended_again(engine: SqliteEngine, path: Path) -> None:
    with engine.write() as transaction:
        assert hook_entries.append(transaction, 1, drafts(1)) == 2
        assert hook_entries.append(transaction, 2, [*drafts(1), *drafts(2), *drafts(2)]) == 2
        assert hook_entries.append(transaction, 3, []) == 0
    entries = list(history.walk(engine))
    engine.close()
    assert [(entry.event_id, str(entry.kind), entry.reason) for entry in entries] == [
        (number.to_bytes(16, "big"), kind, reason)
        for number in (1, 2)
        for kind, reason in (("hook_received", None), ("hook_dead", "exhausted"))
    ]
    assert HookDetail.decode(entries[1].detail) == DETAIL
    assert inspect(path) == ("device", [])


def test_the_database_itself_takes_no_second_one(engine: SqliteEngine) -> None:
    with pytest.raises(ConstraintViolated), engine.write() as transaction:
        history.append(transaction, 1, [*drafts(1), drafts(1)[0]])
    engine.close()
