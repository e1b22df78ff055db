"""What the crash tests of hooks share with the other tests of hooks."""

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir(0o700)
    return path
