"""A relay to ask: a process of its own, on a port of its own, checked when the test is over."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.relay.database import SCHEMA
from holdfast.relay.settings import Limits, Settings
from holdfast.store.check import check
from tests.postgres import Server
from tests.relay import store
from tests.relay.place import Place
from tests.relay.running import RunningRelay, running

BLACK_BOX = {
    "test_black_box",
    "test_export_http",
    "test_fates",
    "test_mesh_document",
    "test_moderation",
    "test_queue",
    "test_queue_room",
    "test_queue_streams",
    "test_queue_trouble",
    "test_receipts",
    "test_retention",
}
"""Files whose tests look at what a relay does from outside, and so on both engines every time."""

BLACK_BOX_OF_THE_FEED = {
    "test_changes_defects",
    "test_changes_filters",
    "test_changes_seam",
    "test_feed_clients",
    "test_feed_requests",
    "test_feed_retention",
    "test_snapshots",
}
"""Likewise; on PostgreSQL in `make test-long`."""

EVERYWHERE = store.POSTGRES if os.environ.get("HOLDFAST_STORE") == store.POSTGRES else store.SQLITE
"""The engine of all other tests. HOLDFAST_STORE=postgres runs everything there that can run there."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "on_store" in metafunc.fixturenames:
        name = metafunc.module.__name__.rpartition(".")[2]
        both = [store.SQLITE, store.POSTGRES]
        if name in BLACK_BOX:
            metafunc.parametrize("on_store", both, indirect=True, scope="module", ids=both)
        elif name in BLACK_BOX_OF_THE_FEED:
            engines = [store.SQLITE, pytest.param(store.POSTGRES, marks=pytest.mark.long)]
            metafunc.parametrize("on_store", engines, indirect=True, scope="module", ids=both)
        else:
            metafunc.parametrize("on_store", [EVERYWHERE], indirect=True, scope="module", ids=[pytest.HIDDEN_PARAM])


@pytest.fixture(scope="module", autouse=True)
def on_store(request: pytest.FixtureRequest) -> Iterator[str]:
    """The engine on which every relay of these tests runs."""
    wanted: str = getattr(request, "param", EVERYWHERE)  # classes of unittest have no parameters
    server: Server | None = request.getfixturevalue("postgres") if wanted == store.POSTGRES else None
    store.use(server)
    yield wanted
    store.use(None)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RunningRelay]:
    with running(tmp_path / "relay") as started:
        yield started


@pytest.fixture(scope="module")
def shared_relay(tmp_path_factory: pytest.TempPathFactory, on_store: str) -> Iterator[RunningRelay]:
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
