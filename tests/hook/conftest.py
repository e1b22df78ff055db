"""What the tests of hooks share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hook.office import Office, Scene
from tests.hook.virtual import VirtualLoop, run


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir(0o700)
    return path


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.close()


@pytest.fixture
def office(home: Path, loop: VirtualLoop) -> Iterator[Office]:
    """A home whose database keeps all of its rules when the test is over."""
    opened = Office(home, loop)
    yield opened
    opened.close()


@pytest.fixture
def play(office: Office) -> Callable[[Scene], None]:
    """Run a scene on the office's virtual time."""
    return lambda scene: run(scene(), office.loop)
