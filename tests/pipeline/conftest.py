"""One Spark session for all tests of a process: it takes longer to start than most of them to run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.pipeline.session import TEST_PROFILE, SessionSettings, open_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts Spark."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = SessionSettings(master="local[2]", memory_mb=1024, rows=0, more=TEST_PROFILE)
    session = open_session(settings, tmp_path_factory.mktemp("spark"))
    holdfast.register(session)
    yield session
    session.stop()


@pytest.fixture
def lake_path(tmp_path: Path) -> Path:
    return tmp_path / "lake"
