"""Every engine there is: a test that takes `engine` is part of the conformance suite and runs on each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.store.engine import Engine
from holdfast.store.sqlite import MEMORY, SqliteEngine

ENGINES: dict[str, Callable[[Path], Engine]] = {
    "sqlite file": lambda folder: SqliteEngine(folder / "store.db"),
    "sqlite memory": lambda folder: SqliteEngine(MEMORY),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    opened = ENGINES[request.param](tmp_path)
    opened.prepare()
    yield opened
    opened.close()
