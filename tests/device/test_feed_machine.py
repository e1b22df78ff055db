"""Homes of one author under random edits, deletions, cuts, deaths and compaction: in the end they all see what was made."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from holdfast.protocol.schedule import HOUR
from tests.device.feed_world import Dwelling, Town, frontier

EXAMPLES = 10 * int(os.environ.get("HOLDFAST_CRASH_CYCLES", "2"))
NAMES = ("list", "plan", "poem")
ROUNDS_MAX = 12  # in which everybody meets everybody until nothing is left to tell

fuses = st.one_of(st.just(-1), st.integers(1, 12))
lives = st.one_of(st.just(-1), st.integers(1, 8))
edits = st.tuples(
    st.just("edit"), st.integers(0, 1), st.sampled_from(NAMES), st.one_of(st.none(), st.text("ab", min_size=1)), lives
)
meetings = st.tuples(st.just("meet"), st.integers(0, 1), st.integers(0, 1), fuses, st.booleans(), lives, st.booleans())
compactions = st.tuples(st.just("compact"), st.integers(0, 1))
steps = st.lists(st.one_of(edits, edits, meetings, meetings, compactions), min_size=4, max_size=24)


@contextmanager
def world(relays: int) -> Iterator[tuple[list[Dwelling], list[Town]]]:
    with TemporaryDirectory() as path:
        towns = [Town(Path(path), f"town-{number}") for number in range(relays)]
        homes = [Dwelling(Path(path), f"home-{number}", towns[0].place.clock) for number in range(2)]
        for home in homes:
            home.add(*towns)
        try:
            yield homes, towns
        finally:
            for home in homes:
                home.close()
            for town in towns:
                town.place.engine.close()


def act(homes: list[Dwelling], towns: list[Town], step: tuple[object, ...]) -> None:
    match step:
        case ("edit", int(home), str(name), body, int(life)):
            homes[home].edit(name, None if body is None else str(body), lives=life, dies_before=life % 2 == 0)
        case ("meet", int(home), int(town), int(fuse), bool(lost), int(life), bool(before)):
            met = towns[town % len(towns)]
            homes[home].meet(met, fuse=fuse, lost=lost, lives=life, dies_before=before)
        case ("compact", int(town)):
            pass_time(towns)
            towns[town % len(towns)].compact()


def pass_time(towns: list[Town]) -> None:
    for town in towns:
        town.place.now += HOUR


def settle(homes: list[Dwelling], towns: list[Town]) -> None:
    """Everybody meets everybody, undisturbed, until that changes nothing."""
    pass_time(towns)  # whatever waits for its next attempt is due
    before: object = None
    for _ in range(ROUNDS_MAX):
        for home in homes:
            for town in towns:
                home.meet(town)
        now = [(home.shown(), home.waiting(), home.rows("SELECT relay, seq FROM feed_relay")) for home in homes]
        if now == before:
            return
        before = now
    raise AssertionError("it does not come to rest")


def check(homes: list[Dwelling], towns: list[Town]) -> None:
    made = homes[0].made() | homes[1].made()
    expected = frontier(made, NAMES)
    for home in homes:
        assert home.waiting() == 0
        assert {event_id for event_id in home.acknowledged if event_id not in made} == set(), "an edit is lost"
        assert home.shown() == expected
        home.check()
    for town in towns:
        town.check()


@pytest.mark.parametrize("relays", [1, 2])
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
@given(steps=steps)
def test_all_homes_end_with_the_same_documents_and_conflicts_and_no_edit_is_lost(
    relays: int, steps: list[tuple[object, ...]]
) -> None:
    with world(relays) as (homes, towns):
        for step in steps:
            act(homes, towns, step)
            for home in homes:
                home.check()
                for town in towns:
                    home.check_position(town)
        settle(homes, towns)
        check(homes, towns)
        event("conflict" if any(state == "conflict" for state, _ in homes[0].shown().values()) else "agreement")
