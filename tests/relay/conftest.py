"""A relay to ask: a process of its own, on a port of its own, checked when the test is over."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.relay.database import SCHEMA
from holdfast.relay.settings import Limits, Settings
from holdfast.store.check import check
from tests.relay.place import Place
from tests.relay.running import RunningRelay, running


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RunningRelay]:
    with running(tmp_path / "relay") as started:
        yield started


@pytest.fixture(scope="module")
def shared_relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    """One relay for all tests of a file, for those that leave it as it was."""
    with running(tmp_path_factory.mktemp("shared") / "relay") as started:
        yield started


@pytest.fixture
def settings() -> Settings:
    return Settings(limits=Limits(queue_messages_max=5, messages_burst=1000))


@pytest.fixture
def place(tmp_path: Path, settings: Settings) -> Iterator[Place]:
    made = Place(tmp_path / "relay.db", settings)
    yield made
    assert list(check(made.engine, SCHEMA)) == []
    asyncio.run(made.relay.close())
