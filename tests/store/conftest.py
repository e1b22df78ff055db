"""Every engine there is: a test that takes `engine` is part of the conformance suite and runs on each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.store.engine import Engine
from holdfast.store.postgres import PostgresEngine
from holdfast.store.sqlite import MEMORY, SqliteEngine
from tests.postgres import Server

POSTGRES = "postgres"

ENGINES: dict[str, Callable[[Path], Engine]] = {
    "sqlite file": lambda folder: SqliteEngine(folder / "store.db"),
    "sqlite memory": lambda folder: SqliteEngine(MEMORY),
}


@pytest.fixture(params=[*ENGINES, POSTGRES])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == POSTGRES:
        yield from _on_postgres(request.getfixturevalue("postgres"))
        return
    opened = ENGINES[request.param](tmp_path)
    opened.prepare()
    yield opened
    opened.close()


def _on_postgres(server: Server) -> Iterator[Engine]:
    url = server.url(
        server.template("conformance", lambda url: None)
    )  # one for all: a schema is made sooner than a database
    server.run("DROP SCHEMA public CASCADE; CREATE SCHEMA public", "conformance")
    opened = PostgresEngine(url)
    opened.prepare()
    yield opened
    opened.close()
