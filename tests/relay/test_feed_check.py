"""`holdfast check` on the feed: it finds whatever is not as it must be."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.check import inspect
from holdfast.protocol.schedule import HOUR, SECOND
from holdfast.relay.settings import FeedSettings, Limits, Settings
from tests.relay.feed_client import Author
from tests.relay.place import Place

SETTINGS = Settings(
    feed=FeedSettings(open=True, tombstones_max=1, compact_after_hours=1, recent_count=2),
    limits=Limits(messages_burst=100_000),
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Documents with everything: conflicts, a late comer, payloads that are gone, one that was pruned and came back."""
    made = Place(tmp_path / "relay.db", SETTINGS)
    author = Author(now_s=made.now // SECOND)
    made.expect(201, author.snapshot("gone", {"A": 5}, o="del"), author.snapshot("gone too", {"A": 1}, o="del"))
    asyncio.run(made.relay.sweep())
    made.expect(
        201,
        author.snapshot("doc", {"A": 1}),
        author.snapshot("doc", {"A": 2}),
        author.snapshot("doc", {"B": 1}),
        author.snapshot("doc", {"A": 1}, content="late"),
        author.snapshot("doc", {"A": 3}),
        author.snapshot("gone", {"A": 4}, content="late"),
        author.snapshot("gone", {"A": 6}),
    )
    made.now += HOUR
    asyncio.run(made.relay.sweep())
    made.expect(201, author.snapshot("new", {"A": 1}), author.snapshot("new", {"A": 2}))
    yield made
    asyncio.run(made.relay.close())


def findings(place: Place) -> set[str]:
    place.engine.close()
    _, found = inspect(Path(place.engine.where))
    return {finding.check for finding in found}


def test_a_healthy_feed_has_nothing_to_find(place: Place) -> None:
    assert findings(place) == set()


WRONG, COUNT = "superseded", "documents_know_what_is_current"
IN_HISTORY, KEPT = "every_snapshot_is_in_the_history", "every_snapshot_of_the_history_is_kept"
LATER, PAYLOAD = "what_superseded_a_snapshot_is_later", "payloads_go_by_an_entry"

# Positions 4 to 8 are of one document: {A1} superseded by 5, {A2} by 8, {B1}, {A1} late, {A3}. 9 and 10 are of the one that
# was pruned at {A5}: {A4} late, so its payload is gone, {A6}. The last one is of another: {A1}, superseded by {A2}.
PLANTED: dict[str, set[str]] = {
    "UPDATE snapshot SET superseded_seq = NULL, event = zeroblob(9) WHERE seq = 9": {WRONG, COUNT, PAYLOAD},
    "UPDATE snapshot SET superseded_seq = NULL WHERE d = 'new' AND superseded_seq > seq": {WRONG, COUNT},
    "UPDATE snapshot SET superseded_seq = 10 WHERE seq = 9": {WRONG},
    "UPDATE snapshot SET superseded_seq = 8 WHERE seq = 4": {WRONG},
    "UPDATE snapshot SET superseded_seq = 4 WHERE seq = 4": {WRONG},
    "UPDATE snapshot SET superseded_seq = 8 WHERE seq = 7": {WRONG},
    "UPDATE snapshot SET superseded_seq = 8 WHERE seq = 6": {WRONG, COUNT},
    "UPDATE snapshot SET superseded_seq = 10 WHERE seq = 10": {WRONG, COUNT},
    "UPDATE snapshot SET superseded_seq = 9 WHERE seq = 4": {WRONG, LATER},
    "UPDATE snapshot SET clock = '[[\"A\",9]]' WHERE seq = 5": {WRONG},
    "UPDATE snapshot SET clock = 'nonsense' WHERE seq = 5": {"verify"},
    "UPDATE snapshot SET clock = '[[\"A\",0]]' WHERE seq = 5": {"verify"},
    "UPDATE document SET pruned = replace(pruned, '[\"A\",5]', '[\"A\",3]') WHERE d = 'gone'": {WRONG},
    "UPDATE document SET pruned = '{}' WHERE d = 'gone'": {"verify"},
    "DELETE FROM snapshot WHERE seq = 8": {WRONG, COUNT, KEPT, LATER},
    "DELETE FROM snapshot WHERE seq = 9": {KEPT},
    "DELETE FROM document WHERE d = 'doc'": {"snapshots_have_their_document"},
    "UPDATE document SET currents = currents + 1 WHERE d = 'doc'": {COUNT},
    "UPDATE document SET puts = puts - 1 WHERE d = 'doc'": {COUNT},
    "UPDATE snapshot SET o = 'del' WHERE seq = 8": {COUNT},
    "UPDATE snapshot SET event = NULL WHERE d = 'new' AND superseded_seq > seq": {PAYLOAD},
    "UPDATE snapshot SET event = zeroblob(9) WHERE seq = 4": {PAYLOAD},
    "UPDATE snapshot SET event_id = zeroblob(32) WHERE seq = 8": {IN_HISTORY},
    "UPDATE feed SET min_seq = 1": {KEPT},
}


@pytest.mark.parametrize("statement", PLANTED)
def test_whatever_somebody_changes_is_found(place: Place, statement: str) -> None:
    with place.engine.write() as transaction:
        assert transaction.run(statement) == 1
    assert findings(place) == PLANTED[statement]


def test_a_finding_says_what_is_wrong_where(place: Place) -> None:
    with place.engine.write() as transaction:
        transaction.run("UPDATE snapshot SET superseded_seq = 8 WHERE seq = 4")
    place.engine.close()
    _, (finding,) = inspect(Path(place.engine.where))
    assert finding.found == "snapshot 4 of doc says 8, and it is 5"
    assert (
        finding.rule == "A snapshot is superseded by the first one that knew of it, or by itself if one before it did."
    )


def test_more_documents_than_a_page_are_all_gone_through(place: Place) -> None:
    author = Author("many", now_s=place.now // SECOND)
    place.expect(201, *(author.snapshot(f"doc-{number:03}") for number in range(250)))
    with place.engine.write() as transaction:
        transaction.run("UPDATE snapshot SET superseded_seq = seq WHERE d IN ('doc-000', 'doc-149', 'doc-249')")
    place.engine.close()
    _, found = inspect(Path(place.engine.where))
    assert len([finding for finding in found if finding.check == WRONG]) == 3
