"""A relay and people for the tests of commands: real processes all."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.cli.check import inspect
from tests.cli.person import Person, founder, member_of
from tests.relay.running import RunningRelay, running


@pytest.fixture(scope="package")
def town_relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    """One relay for every test that leaves it as it is; each has a mesh of its own."""
    with running(tmp_path_factory.mktemp("town") / "relay") as started:
        yield started


@pytest.fixture
def resident(tmp_path: Path) -> Iterator[Callable[[str], Person]]:
    """People by name; when the test is over, every home of theirs keeps its rules."""
    people: dict[str, Person] = {}
    yield lambda name: people.setdefault(name, Person(tmp_path / name))
    for known in people.values():
        if (known.home / "device.db").exists():
            assert inspect(known.home / "device.db") == ("device", [])


@pytest.fixture
def ann(resident: Callable[[str], Person], town_relay: RunningRelay) -> Person:
    """The admin of a mesh."""
    return founder(resident("ann"), town_relay.url)


@pytest.fixture
def ben(resident: Callable[[str], Person], ann: Person) -> Person:
    """A member of Ann's mesh."""
    return member_of(resident("ben"), ann)
