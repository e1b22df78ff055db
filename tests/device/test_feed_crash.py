"""A home that dies at any commit of a meeting, and a connection that is cut at any frame: nothing is lost, nothing is skipped."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.device.feed_world import Dwelling, Town

COMMITS = 10  # that one of these meetings has, or more than it has
FRAMES = 9


class Scene:
    """A home that comes back after a while: it has edits of its own, and the relay has others."""

    def __init__(self, path: Path) -> None:
        self.town = Town(path, "town")
        self.one, self.other = (Dwelling(path, name, self.town.place.clock) for name in ("one", "other"))

    def set(self, *, is_new: bool) -> None:
        for home in (self.one, self.other):
            home.add(self.town)
        self.one.edit("both", "at first")
        self.one.edit("gone", "at first")
        self.one.meet(self.town)
        if not is_new:
            self.other.meet(self.town)
        self.one.edit("both", "by one")
        self.one.edit("gone", None)
        self.one.edit("ones", "by one")
        self.other.edit("both", "by the other")
        self.other.edit("others", "by the other")
        self.one.meet(self.town)

    def disturb(self, meet: Callable[[], None]) -> None:
        """One meeting that goes wrong; afterwards everything is as it must be."""
        meet()
        self.other.check()
        self.other.check_position(self.town)
        assert self.other.client.document("others").body == "by the other"
        for home in (self.other, self.one, self.other):
            self.town.place.now += 60_000_000  # whatever was put off is due
            home.meet(self.town)
        assert self.one.waiting() == self.other.waiting() == 0
        assert self.one.shown() == self.other.shown()
        states = {name: state for name, (state, _) in self.one.shown().items()}
        assert states == {"both": "conflict", "ones": "ok", "others": "ok"}

    def close(self) -> None:
        for home in (self.one, self.other):
            home.check()
            home.close()
        self.town.check()
        self.town.place.engine.close()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The files of each scene, to be copied; by whether the relay is new to the home."""
    made = {is_new: tmp_path_factory.mktemp("scene") for is_new in (False, True)}
    for is_new, path in made.items():
        scene = Scene(path)
        scene.set(is_new=is_new)
        scene.close()
    return made


@pytest.fixture(params=[False, True], ids=["that it knows", "that is new to it"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, scenes: dict[bool, Path]) -> Iterator[Scene]:
    for file in scenes[request.param].iterdir():
        shutil.copy(file, tmp_path)
    opened = Scene(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("dies_before", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("commit", range(1, COMMITS + 1))
def test_a_home_that_dies_at_a_commit_of_a_meeting_with_a_relay(scene: Scene, commit: int, dies_before: bool) -> None:
    scene.disturb(lambda: scene.other.meet(scene.town, lives=commit, dies_before=dies_before))


@pytest.mark.parametrize("lost", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("frame", range(1, FRAMES + 1))
def test_a_connection_that_is_cut_at_a_frame(scene: Scene, frame: int, lost: bool) -> None:
    scene.disturb(lambda: scene.other.meet(scene.town, fuse=frame, lost=lost))


@pytest.mark.parametrize("dies_before", [False, True], ids=["after", "before"])
def test_an_edit_that_was_not_acknowledged_is_there_whole_or_not_at_all(tmp_path: Path, dies_before: bool) -> None:
    town = Town(tmp_path, "town")
    home = Dwelling(tmp_path, "home", town.place.clock)
    home.add(town)
    assert not home.edit("list", "milk", lives=1, dies_before=dies_before)
    assert len(home.shown()) == home.waiting() == (0 if dies_before else 1)
    home.meet(town)
    assert town.place.rows("SELECT count(*) FROM snapshot") == [(0 if dies_before else 1,)]
    home.check()
    home.close()
    town.place.engine.close()
