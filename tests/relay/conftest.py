"""A relay to ask: a process of its own, on a port of its own, checked when the test is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
