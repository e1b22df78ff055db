"""What a relay is told to be in a lake, and lakes that cannot answer for what was told. No Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli import pipeline
from holdfast.pipeline import checkpoint, plan, records
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.pages import Place
from holdfast.pipeline.plan import Mark, Source
from holdfast.pipeline.runner import Runner
from tests.pipeline import lakes
from tests.relay.running import RunningRelay, running


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    with running(tmp_path_factory.mktemp("checkpoint") / "data") as found:
        found.found_mesh("anna", "ben")
        yield found


@pytest.fixture
def place(relay: RunningRelay, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """The relay, to a consumer of this test's own."""
    path = tmp_path / "token"
    path.write_text(relay.token("--consumer", request.node.name.replace("_", "-")[:40]))
    return Place(relay.url, path.read_text(), lakes.PATIENCE_S, str(path))


def source_of(place: Place) -> Source:
    (found,) = plan.find_sources(place, [])
    return found


def mark_at(source: Source, seq: int) -> Mark:
    return Mark(source.origin, source.head.log_id, seq, None)


def told(source: Source, marks: dict[str, Mark]) -> list[tuple[str, str, bool]]:
    found = plan.make_plan(2, [source], marks, lakes.unread, full=True).losses
    return [(loss.kind, loss.key.removeprefix(f"{source.origin}/"), loss.is_violation) for loss in found]


def test_a_lake_that_is_behind_what_was_acknowledged_in_its_name_says_so(place: Place) -> None:
    consumer = checkpoint.consumer_of(place.token)
    before = source_of(place)
    assert before.acknowledged is None
    assert told(before, {before.origin: mark_at(before, 1)}) == []
    assert checkpoint.move(place, mark_at(before, 3)) is None
    source = source_of(place)
    assert told(source, {source.origin: mark_at(source, 3)}) == []
    expected = [("acknowledged_unread", f"{consumer}/3", False)]
    assert told(source, {source.origin: mark_at(source, 2)}) == expected, "it was put back from an older copy"
    assert told(source, {}) == expected, "it was begun again"


def test_what_was_acknowledged_of_another_log_says_nothing_of_this_one(place: Place) -> None:
    source = source_of(place)
    of_other = checkpoint.Checkpoint("somebody", bytes(16), 9)
    behind = mark_at(source, 1)
    assert told(Source(source.origin, place, source.head, of_other), {source.origin: behind}) == []


def test_a_second_lake_under_the_same_name_is_told_what_to_do(place: Place) -> None:
    source = source_of(place)
    assert checkpoint.move(place, mark_at(source, 3)) is None
    problem = str(checkpoint.move(place, mark_at(source, 2)))
    assert "checkpoint_backwards" in problem
    assert "a token of its own" in problem


def test_a_relay_is_told_of_its_own_history_alone(place: Place) -> None:
    """A lake may have read another relay before, which has another name and another log."""
    source = source_of(place)
    marks = {"relay:00": Mark("relay:00", bytes(16), 1, None), source.origin: mark_at(source, 2)}
    assert checkpoint.move(place, marks.get(source.origin)) is None
    assert checkpoint.move(place, None) is None
    found = checkpoint.find(place)
    assert found is not None
    assert (found.log_id, found.seq) == (source.head.log_id, 2)


def test_what_a_run_could_not_say_any_more_the_next_one_says_before_it_waits(place: Place) -> None:
    """One that was killed between the lake and the relay."""
    before = source_of(place)
    checkpoint.repeat(place, before.acknowledged, mark_at(before, 3))
    after = source_of(place)
    assert after.acknowledged is not None
    assert after.acknowledged.seq == 3
    checkpoint.repeat(place, after.acknowledged, mark_at(after, 2))  # of an older copy
    checkpoint.repeat(place, after.acknowledged, None)
    assert source_of(place).acknowledged == after.acknowledged


@pytest.mark.parametrize("every_s", [None, 60.0], ids=["once", "for ever"])
def test_a_run_says_it_before_its_first_batch(place: Place, tmp_path: Path, every_s: float | None) -> None:
    """What the lake has by its last complete batch, though there may be nothing new for a long time."""
    source = source_of(place)
    lake = lake_with(tmp_path / "lake", mark_at(source, 3))
    runner = Runner(None, lake, {})  # type: ignore[arg-type]  # none of its batches begins
    pipeline._outcomes(runner, [source], every_s, full=True)
    found = checkpoint.find(place)
    assert found is not None
    assert (found.log_id, found.seq) == (source.head.log_id, 3)


def test_a_relay_hears_of_a_reader_before_that_has_read_anything(place: Place, tmp_path: Path) -> None:
    """And prunes nothing from then on that the lake lacks, however many batches that takes."""
    lake = Lake(tmp_path / "lake")
    lake.create()
    pipeline._outcomes(Runner(None, lake, {}), [source_of(place)], None, full=True)  # type: ignore[arg-type]  # likewise
    found = checkpoint.find(place)
    assert found is not None
    assert found.seq == 0


def lake_with(path: Path, mark: Mark) -> Lake:
    """One with a complete batch that left it there."""
    lake = Lake(path)
    lake.create()
    row = {
        "number": 1,
        "at": records.as_time(1),
        "entries": mark.seq,
        "ranges": [],
        "heads": [vars(mark)],
        "versions": [],
    }
    lake.commit(records.RUN, 1, lake.stage_rows(records.RUN, records.arrow_rows(records.RUN, [row])))
    return lake
