"""One relay and one daemon for everybody who comes to their doors."""

from collections.abc import Iterator

import pytest

from tests.abuse.scene import Scene, scene


@pytest.fixture(scope="package")
def place() -> Iterator[Scene]:
    with scene() as found:
        yield found
