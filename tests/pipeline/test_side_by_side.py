"""Tables side by side: each after those it needs, no more at once than allowed, and nothing is begun once something failed."""

from threading import Barrier, Event, Lock

import pytest

from holdfast.pipeline.side_by_side import do_each

NEEDS = {"a": (), "b": (), "c": ("a", "b"), "d": ("c",), "e": ("a",)}
PATIENCE_S = 30.0


class Stopped(BaseException):
    """What nobody catches by chance."""


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_each_is_done_once_and_after_what_it_needs(at_once: int) -> None:
    done: list[str] = []
    do_each(NEEDS, at_once, done.append)
    assert sorted(done) == sorted(NEEDS)
    assert all(done.index(need) < done.index(name) for name, needs in NEEDS.items() for need in needs)


def test_as_many_as_allowed_are_done_at_once_and_no_more() -> None:
    met, lock, most = Barrier(3), Lock(), 0
    under_way: set[str] = set()

    def do(name: str) -> None:
        nonlocal most
        with lock:
            under_way.add(name)
            most = max(most, len(under_way))
        met.wait(PATIENCE_S)  # which three reach only together
        with lock:
            under_way.discard(name)

    do_each(dict.fromkeys("abcdef", ()), 3, do)
    assert most == 3


def test_what_most_wait_for_is_done_first() -> None:
    done: list[str] = []
    lock, both = Lock(), Barrier(2)

    def do(name: str) -> None:
        with lock:
            done.append(name)
        both.wait(PATIENCE_S)

    do_each({"lone": (), "other": (), "first": (), "second": ("first",), "third": ("second",), "last": ()}, 2, do)
    assert "first" in done[:2]
    assert done.index("second") < 4


@pytest.mark.parametrize("at_once", [1, 2])
def test_where_one_fails_none_is_begun_and_what_was_begun_is_waited_for(at_once: int) -> None:
    begun: list[str] = []
    ended: list[str] = []
    has_failed, all_begun = Event(), Barrier(at_once)

    def do(name: str) -> None:
        begun.append(name)
        all_begun.wait(PATIENCE_S)
        if name == "a":
            has_failed.set()
            raise Stopped
        assert has_failed.wait(PATIENCE_S)
        ended.append(name)

    with pytest.raises(Stopped):
        do_each(dict.fromkeys("abcdef", ()), at_once, do)
    assert (sorted(begun), ended) == (["a", "b"][:at_once], ["b"][: at_once - 1])
