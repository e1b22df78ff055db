"""What a batch reads of histories that were restored, cut off, pruned or exchanged."""

import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.cli import pipeline
from holdfast.pipeline import checkpoint, pages, plan, watch
from holdfast.pipeline.conclusion import Conclusion
from holdfast.pipeline.inputs import Inputs
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.outcome import Outcome
from holdfast.pipeline.pages import Head, Place
from holdfast.pipeline.plan import Mark, OtherHistory, Plan, Source, SourceTwice
from holdfast.pipeline.runner import Runner
from holdfast.pipeline.shelf import NO_RUN, Shelf
from holdfast.pipeline.table import Range
from holdfast.pipeline.verify import verify
from holdfast.relay import copy
from holdfast.relay.database import open_relay
from holdfast.store import history
from tests.pipeline import lakes
from tests.pipeline.toys import TOYS
from tests.pipeline.worlds import generated
from tests.relay.running import RunningRelay, running


def send(relay: RunningRelay, count: int) -> None:
    for _ in range(count):
        assert relay.publish(relay.person("anna").message(relay.person("ben"))).status == 201


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a relay that has run."""
    with running(tmp_path / "data") as relay:
        relay.found_mesh("anna", "ben")
        send(relay, 7)
    return tmp_path / "data"


@pytest.fixture
def relay(data: Path) -> Iterator[RunningRelay]:
    with running(data) as found:
        yield found


def test_a_restored_relay_is_followed_from_where_it_left_the_old_log(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    copy.backup(data, tmp_path / "backup")  # 10 entries
    with running(data) as relay:
        _send_later(relay)
        lakes.run(spark, lake, lakes.place_of(relay, tmp_path), tables=TOYS)
    copy.restore(tmp_path / "backup", tmp_path / "restored")
    with running(tmp_path / "restored") as relay:
        outcome = lakes.run(spark, lake, lakes.place_of(relay, tmp_path), tables=TOYS)
    shelf = lakes.shelf_of(lake, TOYS)
    rows = shelf.query(
        "history", shelf.last_run().versions["history"], "SELECT hex(log_id) AS log, seq, kind FROM {rows}"
    )
    logs = [sorted(row["seq"] for row in rows if row["log"] == log) for log in {row["log"] for row in rows}]
    assert sorted(logs, key=len) == [[11], list(range(1, 12))]
    assert [row["kind"] for row in rows if row["seq"] == 11 and [row["log"]] != [_first_log(rows)]] == ["restored"]
    assert outcome.entries == 1
    assert (outcome.violations, verify(shelf)) == (0, [])


def _first_log(rows: list[dict[str, object]]) -> object:
    return next(row["log"] for row in rows if row["seq"] == 1)


def test_a_log_that_lost_its_tail_is_a_violation(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with running(data) as relay:
        place = lakes.place_of(relay, tmp_path)
        lakes.run(spark, lake, place, tables=TOYS)
        head = relay.head_seq()
    _cut_off(data, head - 2)
    with lakes.running_damaged(data) as relay:
        outcome = lakes.run(spark, lake, lakes.place_of(relay, tmp_path), tables=TOYS)
        again = lakes.run(spark, lake, lakes.place_of(relay, tmp_path), tables=TOYS)
    assert outcome.violations == again.violations == 1
    ((kind, key),) = lakes.findings(lake)
    assert (kind, key.rpartition("/")[2]) == ("log_truncated", str(head))
    assert [mark.seq for one in (outcome, again) for mark in one.kept.values()] == [head - 2, head - 2]


def test_a_log_that_was_cut_off_and_is_whole_again_is_kept_again(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    lake, said = tmp_path / "lake", []
    with running(data) as relay:
        lakes.run(spark, lake, lakes.place_of(relay, tmp_path), tables=TOYS)
        head = relay.head_seq()
    shutil.copytree(data, tmp_path / "whole")
    _cut_off(data, head - 2)
    with lakes.running_damaged(data) as relay:
        said.append(lakes.run(spark, lake, lakes.place_of(relay, tmp_path), tables=TOYS))
    with running(tmp_path / "whole") as relay:
        place = lakes.place_of(relay, tmp_path)
        said.append(lakes.run(spark, lake, place, tables=TOYS))
        runner, sources = _runner(spark, relay, tmp_path)
        said += watch.once(runner, sources, full=False)
        (kept,) = runner.kept(sources).values()
    assert [(list(one.in_doubt.values()), [mark.seq for mark in one.kept.values()]) for one in said] == [
        ([head - 2], [head - 2]),
        ([], [head]),
        ([], [head]),
    ]
    assert (kept.seq, [one.violations for one in said]) == (head, [1, 1, 1]), "that it was not is still known"


def test_an_entry_that_was_wrong_in_a_log_that_a_restore_left_is_no_reason_to_keep_the_new_one(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    lake, tables = tmp_path / "lake", lakes.with_what_they_need("chain_break")
    copy.backup(data, tmp_path / "backup")
    with running(data) as relay:
        _send_later(relay)
        wrong = relay.head_seq()
    engine = open_relay(data / "relay.db")
    with engine.write() as transaction:
        transaction.run("UPDATE history SET size = size + 1 WHERE seq = :seq", {"seq": wrong})
    engine.close()
    with lakes.running_damaged(data) as relay:
        damaged = lakes.run(spark, lake, lakes.place_of(relay, tmp_path), tables=tables)
    copy.restore(tmp_path / "backup", tmp_path / "restored")
    with running(tmp_path / "restored") as relay:
        _send_later(relay, 2)
        restored = lakes.run(spark, lake, lakes.place_of(relay, tmp_path), tables=tables)
        head = relay.head_seq()
    assert [kind for kind, _ in lakes.findings(lake, tables)] == ["chain_mismatch"]
    assert [mark.seq for one in (damaged, restored) for mark in one.kept.values()] == [wrong - 1, head]


@pytest.fixture
def older(spark: SparkSession, data: Path, tmp_path: Path) -> Path:
    """The directory of a relay as it was two entries before those that the lake has read of it."""
    shutil.copytree(data, tmp_path / "older")
    with running(data) as relay:
        _send_later(relay, 2)
        lakes.run(spark, tmp_path / "lake", lakes.place_of(relay, tmp_path), tables=TOYS)
    return tmp_path / "older"


READ = 12  # entries that the lake has of the log that was put aside


@pytest.mark.parametrize("grown", [2, 4], ids=["as long as it was", "longer"])
def test_a_log_that_was_cut_off_and_has_grown_again_is_a_violation_and_not_read_on(
    spark: SparkSession, older: Path, tmp_path: Path, grown: int
) -> None:
    with running(older) as relay:
        _send_later(relay, grown)
        runner, sources = _runner(spark, relay, tmp_path)
        (outcome,) = watch.once(runner, sources, full=True)
        (again,) = watch.once(runner, sources, full=False)
    assert _kinds_and_positions(tmp_path) == [("log_rewritten", str(READ))]
    assert (outcome.entries, outcome.new_violations, again.is_new, again.violations) == (0, 1, False, 1)
    assert [mark.seq for one in (outcome, again) for mark in one.kept.values()] == [0, 0]


def test_of_a_log_that_was_cut_off_and_has_grown_again_not_as_far_nothing_is_kept(
    spark: SparkSession, older: Path, tmp_path: Path
) -> None:
    with running(older) as relay:
        _send_later(relay)
        runner, sources = _runner(spark, relay, tmp_path)
        (outcome,) = watch.once(runner, sources, full=True)
        send(relay, 1)
        (grown,) = watch.once(runner, plan.renewed(sources), full=False)
    assert _kinds_and_positions(tmp_path) == [("log_rewritten", str(READ)), ("log_truncated", str(READ))]
    assert (outcome.violations, grown.violations) == (1, 2)
    kept = [mark.seq for one in (outcome, grown) for mark in one.kept.values()]
    assert kept == [0, 0], "the lake has other entries there than those that the relay would prune"


def test_every_tells_of_a_log_that_has_grown_again_once(spark: SparkSession, older: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def enough(seconds: float) -> None:
        raise Enough

    with running(older) as relay:
        _send_later(relay, 4)
        runner, sources = _runner(spark, relay, tmp_path)
        batches = watch.every(runner, sources, 60.0, watch.World(clock=itertools.count(0, 60).__next__, sleep=enough))
        assert next(batches).new_violations == 1
        with pytest.raises(Enough):
            next(batches)


def test_before_its_first_batch_a_run_says_nothing_of_a_log_that_has_grown_again(
    spark: SparkSession, older: Path, tmp_path: Path
) -> None:
    with running(older) as relay:
        _send_later(relay, 4)
        runner, sources = _runner(spark, relay, tmp_path)
        pipeline._outcomes(runner, sources, None, full=False)
        told = checkpoint.find(sources[0].place)
    assert told is not None
    assert told.seq == 0, "no entry of another past may go because the lake has one of its position"


@pytest.mark.parametrize(
    ("grown", "unlike"), [(4, READ), (1, READ - 1)], ids=["past the lake's position", "not as far"]
)
def test_a_log_that_had_grown_again_before_it_was_restored_is_not_read_on(
    spark: SparkSession, older: Path, tmp_path: Path, grown: int, unlike: int
) -> None:
    with running(older) as relay:
        _send_later(relay, grown)
    copy.backup(older, tmp_path / "backup")
    copy.restore(tmp_path / "backup", tmp_path / "restored")
    with running(tmp_path / "restored") as relay:
        runner, sources = _runner(spark, relay, tmp_path)
        (outcome,) = watch.once(runner, sources, full=True)
        (again,) = watch.once(runner, sources, full=False)
    assert (outcome.entries, again.is_new) == (0, False)
    assert _kinds_and_positions(tmp_path) == [("log_rewritten", str(unlike))]
    assert [mark.seq for one in (outcome, again) for mark in one.kept.values()] == [0, 0]


def _kinds_and_positions(tmp_path: Path) -> list[tuple[str, str]]:
    return [(kind, key.rpartition("/")[2]) for kind, key in lakes.findings(tmp_path / "lake", TOYS)]


def _cut_off(data: Path, until: int) -> None:
    engine = open_relay(data / "relay.db")
    with engine.write() as transaction:
        ((at, chain),) = transaction.rows("SELECT at, chain FROM history WHERE seq = :seq", {"seq": until})
        transaction.run("DELETE FROM history WHERE seq > :seq", {"seq": until})
        transaction.run(
            "UPDATE history_head SET seq = :seq, at = :at, chain = :chain", {"seq": until, "at": at, "chain": chain}
        )
    engine.close()


def test_entries_that_were_pruned_before_the_lake_had_them_are_a_violation(data: Path, tmp_path: Path) -> None:
    _prune(data, 5)
    with running(data) as relay:
        (source,) = plan.find_sources(lakes.place_of(relay, tmp_path), [])
    behind = Mark(source.origin, source.head.log_id, 3, b"chain")
    made = plan.make_plan(2, [source], {source.origin: behind}, lakes.unread, full=True)
    assert [(loss.kind, loss.key.rpartition("/")[2], loss.is_violation) for loss in made.losses] == [
        ("pruned_unread", "4-5", True)
    ]
    assert [(one.after, one.until, one.chain) for one in made.ranges] == [(5, source.head.seq, None)]
    begun = plan.make_plan(1, [source], {}, lakes.unread, full=True)
    assert [(loss.kind, loss.is_violation) for loss in begun.losses] == [("began_late", False)]
    at_it = Mark(source.origin, source.head.log_id, 5, b"chain")
    assert plan.make_plan(2, [source], {source.origin: at_it}, lakes.unread, full=True).losses == ()


def test_of_a_log_that_was_restored_and_pruned_the_gap_is_told_too(data: Path, tmp_path: Path) -> None:
    with running(data) as relay:
        (before,) = plan.find_sources(lakes.place_of(relay, tmp_path), [])
    copy.backup(data, tmp_path / "backup")
    copy.restore(tmp_path / "backup", tmp_path / "restored")
    _prune(tmp_path / "restored", 5)
    behind = Mark(before.origin, before.head.log_id, 3, b"chain")
    with running(tmp_path / "restored") as relay:
        (source,) = plan.find_sources(lakes.place_of(relay, tmp_path), [])
        made = plan.make_plan(2, [source], {source.origin: behind}, lakes.unread, full=True)
    assert [(loss.kind, loss.key.rpartition("/")[2]) for loss in made.losses] == [("pruned_unread", "4-5")]
    assert [(one.log_id, one.after, one.until) for one in made.ranges] == [(source.head.log_id, 5, source.head.seq)]


def _prune(data: Path, through: int) -> None:
    engine = open_relay(data / "relay.db")
    with engine.write() as transaction:
        history.prune(transaction, 0, through)
    engine.close()


def test_another_log_at_the_same_address_is_refused(relay: RunningRelay, tmp_path: Path) -> None:
    (source,) = plan.find_sources(lakes.place_of(relay, tmp_path), [])
    other = Mark(source.origin, bytes(16), 3, None)
    with pytest.raises(OtherHistory, match="begin another lake"):
        plan.make_plan(2, [source], {source.origin: other}, lakes.unread, full=True)


def test_one_backup_that_is_restored_twice_is_refused_by_a_lake_that_has_read_the_first(
    data: Path, tmp_path: Path
) -> None:
    copy.backup(data, tmp_path / "backup")
    copy.restore(tmp_path / "backup", tmp_path / "first")
    copy.restore(tmp_path / "backup", tmp_path / "second")
    with running(tmp_path / "first") as relay:
        (first,) = plan.find_sources(lakes.place_of(relay, tmp_path), [])
    with running(tmp_path / "second") as relay:
        (second,) = plan.find_sources(lakes.place_of(relay, tmp_path), [])
        mark = Mark(first.origin, first.head.log_id, first.head.seq, None)
        with pytest.raises(OtherHistory, match=r"--anew.*restored a second time from one backup"):
            plan.make_plan(2, [second], {first.origin: mark}, lakes.unread, full=True)


def test_one_history_is_not_read_twice(relay: RunningRelay, tmp_path: Path) -> None:
    place = lakes.place_of(relay, tmp_path)
    found = plan.find_sources(place, [])[0]
    with pytest.raises(SourceTwice, match=found.origin):
        plan.renewed([found, found])


def test_a_relay_is_asked_where_it_stands_after_the_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At first and each time after that: what it signed for a device lies at or before its head then."""
    asked: list[str] = []

    def noted(place: Place) -> Head:
        asked.append(place.url)
        return read_head(place)

    read_head = pages.read_head
    with generated(tmp_path, 20, homes=1) as world:
        monkeypatch.setattr(pages, "read_head", noted)
        found = plan.find_sources(world.place, world.devices)
        again = plan.renewed(found)
    assert asked == 2 * [*(place.url for place in world.devices), world.place.url]
    assert [source.origin for source in again] == [source.origin for source in found]
    assert found[0].origin.startswith(plan.RELAY)


@pytest.mark.parametrize(
    ("heads", "most", "widths"),
    [
        ((90, 5, 5), 30, [20, 5, 5]),  # who needs less leaves the rest to who needs more, wherever it stands
        ((90, 90, 90), 30, [10, 10, 10]),
        ((90, 90, 90), 31, [11, 10, 10]),
        ((5, 90, 0), 30, [5, 25, 0]),
        ((3, 4, 5), 30, [3, 4, 5]),
    ],
)
def test_what_a_history_has_no_use_for_goes_to_the_others(heads: tuple[int, ...], most: int, widths: list[int]) -> None:
    sources = [
        Source(f"relay:{number}", Place("http://nowhere", None, 1.0), Head(b"L" * 16, seq, 0))
        for number, seq in enumerate(heads)
    ]
    made = plan.make_plan(1, sources, {}, lakes.unread, full=True, entries_max=most)
    assert [one.until - one.after for one in made.ranges] == widths
    assert [one.origin for one in made.ranges] == [source.origin for source in sources]


def test_a_plan_survives_being_written_down(relay: RunningRelay, tmp_path: Path) -> None:
    sources = plan.find_sources(lakes.place_of(relay, tmp_path), [])
    made = plan.make_plan(1, sources, {}, lakes.unread, full=True, entries_max=4)
    assert Plan.decode(made.encode()) == made
    assert (made.entries, made.full) == (4, False)


ENDS = (("relay:a", 10), ("relay:b", 10))


@pytest.mark.parametrize(
    ("most", "full", "uncompared", "planned"),
    [
        (20, True, [], (True, False)),
        (20, False, [], (False, False)),
        (19, True, [], (False, True)),  # who has not caught up compares nothing
        (19, False, ["relay:a"], (False, True)),
        (20, False, ["relay:b"], (True, False)),  # and who does compares all, asked for or not
        (20, False, ["relay:away"], (False, False)),  # as far as it can be asked
    ],
)
def test_nothing_is_compared_before_everything_is_read_and_then_all_of_it(
    most: int, full: bool, uncompared: list[str], planned: tuple[bool, bool]
) -> None:
    sources = [Source(origin, Place("http://nowhere", None, 1.0), Head(b"L" * 16, seq, 0)) for origin, seq in ENDS]
    made = plan.make_plan(1, sources, {}, lakes.unread, full=full, entries_max=most, uncompared=uncompared)
    assert (made.full, made.is_behind) == planned


@pytest.mark.parametrize(
    ("full", "is_behind", "asked", "left"),
    [
        (False, True, "ab", ["relay:a", "relay:b"]),
        (False, False, "ab", []),
        (True, False, "ab", []),
        (False, False, "a", ["relay:b"]),  # it had begun with a source that is not there now
        (True, False, "a", ["relay:b"]),
    ],
)
def test_what_a_batch_read_and_could_not_ask_about_is_left_uncompared(
    tmp_path: Path, full: bool, is_behind: bool, asked: str, left: list[str]
) -> None:
    place, tables = Place("http://nowhere", None, 1.0), lakes.with_what_they_need("orphan")
    sources = [Source(f"relay:{one}", place, Head(b"L" * 16, 10, 0)) for one in asked]
    ranges = tuple(Range(origin, b"L" * 16, 0, until, None) for origin, until in ENDS)
    lake = Lake(tmp_path / "lake")
    inputs = Inputs(None, lake, tables, sources, {})  # type: ignore[arg-type]  # it computes nothing
    agreed = Plan(1, ranges, (), full, is_behind)
    assert Conclusion(Shelf(lake, tables), tables, agreed, NO_RUN, inputs, frozenset()).uncompared() == left


def test_a_lake_that_catches_up_says_so_and_the_batch_that_has_finds_what_is_wrong(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    engine = open_relay(data / "relay.db")
    with engine.write() as transaction:
        transaction.run("DELETE FROM dedupe WHERE seq = (SELECT min(seq) FROM dedupe)", {})
    engine.close()
    lake, tables = tmp_path / "lake", lakes.with_what_they_need("orphan")
    said = []
    with lakes.running_damaged(data) as relay:
        place = lakes.place_of(relay, tmp_path)
        (source,) = plan.find_sources(place, [])
        for number in range(1, 4):
            outcome = lakes.run(spark, lake, place, full=False, entries_max=4, tables=tables)
            kinds = [kind for kind, _ in lakes.findings(lake, tables)]
            certified = lakes.shelf_of(lake, tables).certificates(None, number)[-1].said
            assert outcome.uncompared == certified["uncompared"]
            said.append((outcome.is_full, certified["uncompared"], kinds, list(outcome.kept)))
            here = replace(source, head=replace(source.head, seq=min(4 * number, source.head.seq)))
            is_done = Runner(lambda: spark, Lake(lake), tables).standing([here]) is not None
            assert is_done == (not outcome.uncompared), (
                "what is left uncompared is something to do, if there is nothing to read"
            )
    behind: tuple[bool, list[str], list[str], list[str]] = (False, [source.origin], [], [])
    assert said == [behind, behind, (True, [], ["dedupe_missing"], [source.origin])]


def test_once_goes_on_until_everything_is_read(spark: SparkSession, relay: RunningRelay, tmp_path: Path) -> None:
    runner, sources = _runner(spark, relay, tmp_path)
    assert [outcome.entries for outcome in watch.once(runner, sources, full=True)] == [4, 4, 2]


def test_every_waits_until_there_is_something_and_the_time_has_passed(
    spark: SparkSession, relay: RunningRelay, tmp_path: Path
) -> None:
    runner, sources = _runner(spark, relay, tmp_path, entries_max=1000)
    slept: list[float] = []

    class Enough(Exception):
        pass

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 70:
            raise Enough

    world = watch.World(clock=lambda: float(sum(slept)), sleep=sleep)
    batches = watch.every(runner, sources, 60.0, world)
    assert (next(batches).entries, sum(slept)) == (10, 0)  # the first one at once
    _send_later(relay)
    another = Mark(sources[0].origin, sources[0].head.log_id, 11, None)
    assert checkpoint.move(sources[0].place, another) is None
    # The next one when its time has come: with the message, and that somebody keeps the history.
    assert (next(batches).entries, sum(slept)) == (2, 60)
    kinds = [kind for kind, _ in lakes.findings(tmp_path / "lake", TOYS)]
    assert kinds == ["acknowledged_unread"], "what was acknowledged since the run began is looked at, too"
    with pytest.raises(Enough):
        next(batches)


def test_every_notices_a_log_that_became_shorter_though_no_entry_waits(
    spark: SparkSession, relay: RunningRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, sources = _runner(spark, relay, tmp_path, entries_max=1000)
    seconds = [0.0]
    world = watch.World(clock=lambda: seconds[0], sleep=lambda slept: seconds.append(seconds.pop() + slept))
    batches = watch.every(runner, sources, 60.0, world)
    assert next(batches).entries == 10
    monkeypatch.setattr(pages, "read_head", lambda place: replace(sources[0].head, seq=7))
    outcome = next(batches)
    assert (outcome.entries, outcome.violations, outcome.new_violations, seconds) == (0, 1, 1, [60.0])
    assert [kind for kind, _ in lakes.findings(tmp_path / "lake", TOYS)] == ["log_truncated"]
    for seq in (7, 9):  # though it grows
        standing = runner.standing([replace(source, head=replace(source.head, seq=seq)) for source in sources])
        assert standing is not None, "which is told once"
        assert (standing.violations, standing.new_violations) == (1, 0)


def test_every_looks_at_a_lake_that_waits_for_its_log_no_more_often_than_it_would_run(
    spark: SparkSession, relay: RunningRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[float] = []
    slept: list[float] = []
    runner, sources = _runner(spark, relay, tmp_path, entries_max=1000)
    standing = runner.standing

    def look(sources: Sequence[Source]) -> Outcome | None:
        looked.append(sum(slept))
        return standing(sources)

    class Enough(Exception):
        pass

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if sum(slept) > 200:
            raise Enough

    batches = watch.every(runner, sources, 60.0, watch.World(clock=lambda: float(sum(slept)), sleep=sleep))
    assert next(batches).entries == 10
    monkeypatch.setattr(pages, "read_head", lambda place: replace(sources[0].head, seq=7))
    assert next(batches).new_violations == 1
    monkeypatch.setattr(runner, "standing", look)
    with pytest.raises(Enough):
        next(batches)
    assert looked == [120, 180]


def test_every_looks_at_entries_that_it_cannot_read_no_more_often_however_many_they_are(
    spark: SparkSession, relay: RunningRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, sources = _runner(spark, relay, tmp_path, entries_max=1000)
    looked, slept, waiting = list[float](), list[float](), [10]

    class Enough(Exception):
        pass

    def look(sources: Sequence[Source]) -> Outcome | None:
        looked.append(sum(slept))
        return standing

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if sum(slept) == 30:
            waiting[0] += 5
        if sum(slept) > 100:
            raise Enough

    standing = runner.run_batch(sources, full=False)
    monkeypatch.setattr(runner, "standing", look)
    monkeypatch.setattr(watch, "ENTRIES_WAITED_FOR", 5)
    monkeypatch.setattr(plan, "waiting_entries", lambda sources, marks: waiting[0])
    monkeypatch.setattr(watch, "_may_be_anything", lambda runner, sources: True)
    batches = watch.every(runner, sources, 60.0, watch.World(clock=lambda: float(sum(slept)), sleep=sleep))
    with pytest.raises(Enough):
        next(batches)
    assert looked == [0, 30, 90], "at once, when enough came since, and when the time had passed"


def _send_later(relay: RunningRelay, count: int = 1) -> None:
    person = relay.person("anna")
    person.sequences = iter(range(500, 600))
    send(relay, count)


def _runner(
    spark: SparkSession, relay: RunningRelay, tmp_path: Path, entries_max: int = 4
) -> tuple[Runner, list[plan.Source]]:
    lake = Lake(tmp_path / "lake")
    lake.create()
    place: Place = lakes.place_of(relay, tmp_path)
    return Runner(lambda: spark, lake, TOYS, batch_entries_max=entries_max), plan.find_sources(place, [])
