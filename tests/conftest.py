"""What every folder's tests share."""

import os
import sys
from collections.abc import Generator, Iterator
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


OUTPUT_LINES_MAX = (
    60  # of what a failed test printed: its end; a daemon may say thousands, and why it failed stands above them
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.sections[:] = [(name, _end_of(text)) for name, text in report.sections]
    return report


def _end_of(text: str) -> str:
    lines = text.splitlines()
    left_out = len(lines) - OUTPUT_LINES_MAX
    return text if left_out <= 0 else "\n".join([f"({left_out} lines before these)", *lines[left_out:]])


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
