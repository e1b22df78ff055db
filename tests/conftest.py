"""What every folder's tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import OperationLog
from tests.postgres import Server, running_server

# Daemons of the tests are meant to stay for as long as a test, wherever the tests run.
os.environ["HOLDFAST_PERSISTENT"] = "1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "operations.db"


@pytest.fixture
def log(path: Path) -> Iterator[OperationLog]:
    with OperationLog(path) as opened:
        yield opened


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server, started when the first test asks for it."""
    with running_server() as server:
        yield server
