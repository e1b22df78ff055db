"""What every folder's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import OperationLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "operations.db"


@pytest.fixture
def log(path: Path) -> Iterator[OperationLog]:
    with OperationLog(path) as opened:
        yield opened
