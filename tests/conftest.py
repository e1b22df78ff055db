"""What every folder's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import OperationLog
from tests.postgres import Server, running_server


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
