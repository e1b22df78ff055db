"""Named statements."""

import re
from pathlib import Path

import pytest

import holdfast
from holdfast.device import database as device
from holdfast.hook import database as hook
from holdfast.relay import database as relay
from holdfast.store.engine import Engine
from holdfast.store.sqlite import MEMORY, SqliteEngine
from holdfast.store.statements import Statements

FILES = sorted(file for file in Path(holdfast.__file__).parent.rglob("*.sql") if "schema" not in file.parts)


KEYS: dict[str, int | bytes] = {
    "seq": 0,
    "closed_at": 0,
    "receipted_at": 0,
    "key_epoch": 0,
    "event_id": b"",
    "epoch": b"",
    "sequence": 0,
    "count": 0,
    "expires_at": 0,
}  # columns of keys that are no text
AS_TEXT = {("remembered", "event_id")}  # except where they are looked for in one


def _load(file: Path) -> Statements:
    package = ".".join(("holdfast", *file.parent.relative_to(Path(holdfast.__file__).parent).parts))
    return Statements(package, file.name)


def test_there_are_statements_to_test() -> None:
    assert {file.name for file in FILES} >= {
        "history.sql",
        "checks.sql",
        "operation_log.sql",
        "migrations.sql",
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_statement_compiles_against_a_current_database(file: Path) -> None:
    engine = SqliteEngine(MEMORY)
    whose = file.stem if file.parent.name == "console" else file.parent.name  # the console reads every program's tables
    if whose == "hook":
        hook.prepare(engine, lambda: 0)
    else:
        (relay if whose == "relay" else device).prepare(engine, lambda: 0, bytes)
    explained(engine, file)


def explained(engine: Engine, file: Path) -> None:
    """Have a database understand every statement of a file."""
    statements = _load(file)
    assert len(statements) == len(re.findall(r"^-- name:", file.read_text(), re.MULTILINE)) > 0
    for name, statement in statements.items():
        parameters = dict.fromkeys(re.findall(r":(\w+)", statement))
        columns = sorted(set(re.findall(r"\bwanted\.(\w+)", statement)))
        with engine.write() as transaction:
            if columns:
                key = tuple("" if (name, column) in AS_TEXT else KEYS.get(column, "") for column in columns)
                transaction.lookup(statement, columns, [key])
            elif name != "create":
                transaction.rows(f"EXPLAIN {statement}", parameters)
            if engine.is_shared and not columns and statement.startswith("SELECT"):
                transaction.rows(statement, parameters)  # PostgreSQL explains what it would not run


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if not file.name.endswith("checks.sql")],  # checks are run by going through all of them
    ids=lambda file: f"{file.parent.name}/{file.name}",
)
def test_every_statement_is_used(file: Path) -> None:
    code = "".join(source.read_text() for source in file.parent.glob("*.py"))
    assert [name for name in _load(file) if f'"{name}"' not in code] == []


def test_every_check_says_which_rule_it_keeps() -> None:
    for statements in (*device.SCHEMA.checks, *relay.SCHEMA.checks, *hook.SCHEMA.checks):
        for statement in statements.values():
            assert statement.why.endswith("."), statement.name


def test_a_statement_keeps_its_reason_and_loses_its_comments() -> None:
    statement = _load(next(file for file in FILES if file.name == "history.sql"))["lock_head"]
    assert statement.startswith("UPDATE history_head")
    assert "FOR UPDATE" in statement.why
    assert "--" not in statement
