"""`holdfast check` on a home's documents: it finds whatever is not as it must be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.device.database import SCHEMA
from holdfast.store.check import check
from tests.device.feed_world import Dwelling, Town


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a conflict, an older version, something that waits, and something that is gone."""
    path = tmp_path_factory.mktemp("template")
    town = Town(path, "town")
    home, other = (Dwelling(path, name, town.place.clock) for name in ("home", "other"))
    for one in (home, other):
        one.add(town)
    for name in ("both", "gone"):
        home.edit(name, "at first")
    for one in (home, other):
        one.meet(town)
    for name in ("gone", "first", "second"):
        other.edit(name, "x")
        other.edit(name, None)
    other.edit("both", "by the other")
    other.meet(town)
    town.compact()
    home.edit("both", "by this one")
    for _ in range(2):
        home.meet(town)
    home.edit("waits", "text")
    for one in (home, other):
        one.close()
    town.place.engine.close()
    return path / "home.db"


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Iterator[Dwelling]:
    (tmp_path / "home.db").write_bytes(template.read_bytes())
    opened = Dwelling(tmp_path, "home", lambda: 1_800_000_000_000_000)
    yield opened
    opened.close()


def findings(home: Dwelling) -> set[str]:
    return {finding.check for finding in check(home.device._engine, SCHEMA)}


TOLD, GONE, OFFERED = "every_version_was_told_once", "what_is_gone_was_told", "what_is_offered_waits_in_the_log"
CURRENT, RELAYS = "what_is_current_is_at_every_relay_or_on_its_way", "what_is_known_of_relays_is_of_relays"

PLANTED = {
    "DELETE FROM sighting WHERE state = 'offered'": {CURRENT},
    "UPDATE sighting SET state = 'offered' WHERE state = 'there'": {OFFERED},
    "UPDATE snapshot SET event_id = zeroblob(32) WHERE status = 'superseded'": {TOLD, "documents"},
    "UPDATE snapshot SET status = 'gone' WHERE name = 'waits'": {GONE},
    "UPDATE snapshot SET status = 'current' WHERE status = 'gone'": {GONE},
    "UPDATE snapshot SET status = 'current', superseded_by = NULL WHERE status = 'superseded'": {"documents", CURRENT},
    "UPDATE snapshot SET status = 'superseded', superseded_by = zeroblob(32) WHERE name = 'waits'": {"documents"},
    "UPDATE snapshot SET clock = '[[\"x\",1]]' WHERE name = 'waits'": {"documents"},
    "UPDATE snapshot SET clock = 'nonsense' WHERE name = 'waits'": {"documents"},
    "UPDATE snapshot SET o = 'del' WHERE name = 'waits'": {"documents"},
    "UPDATE snapshot SET event = zeroblob(9) WHERE name = 'waits'": {"documents", OFFERED},
    "DELETE FROM feed_relay": {RELAYS},
    "DELETE FROM author": {"there_is_an_author_of_documents"},
    "INSERT INTO feed_relay (relay, is_home, added_at) VALUES ('a', 1, 1), ('b', 1, 1)": {"one_relay_is_the_homes_own"},
}


def test_a_healthy_home_has_nothing_to_find(home: Dwelling) -> None:
    assert findings(home) == set()
    assert {status for (status,) in home.rows("SELECT status FROM snapshot")} == {"current", "superseded", "gone"}
    assert {state for (state,) in home.rows("SELECT state FROM sighting")} == {"offered", "there"}


@pytest.mark.parametrize("statement", PLANTED)
def test_whatever_somebody_changes_is_found(home: Dwelling, statement: str) -> None:
    assert home.device.do(lambda tx: tx.run(statement)) >= 1
    assert findings(home) == PLANTED[statement]
