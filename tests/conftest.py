"""What every folder's tests share."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from holdfast import OperationLog
from tests.postgres import Server, running_server

# Daemons of the tests are meant to stay for as long as a test, wherever the tests run.
os.environ["HOLDFAST_PERSISTENT"] = "1"

# Programs are started here hundreds of times, and every worker reads every test: whoever finds them compiled is sooner done.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What daemons log that run in a thread beside a test is not what the test prints.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))

# How long an example takes says something about the machine, not about what is tested.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


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
