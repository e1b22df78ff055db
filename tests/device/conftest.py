"""What the tests of a device's database share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.device.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A device's database; every rule of it holds when the test is over."""
    opened = Desk(tmp_path / "device.db")
    yield opened
    opened.close()
