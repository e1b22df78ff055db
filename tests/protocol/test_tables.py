"""The engine under the tables."""

import pickle
from enum import StrEnum

import pytest

from holdfast.protocol.tables import NoTransition, move, total, transitions


class Light(StrEnum):
    RED = "red"
    GREEN = "green"


class Turn(StrEnum):
    ON = "on"
    OFF = "off"


MOVES = transitions({(Light.RED, Turn.ON): Light.GREEN})


def test_a_table_that_decides_every_case_is_given_back_as_it_is() -> None:
    assert dict(total({Light.RED: 1, Light.GREEN: 2}, Light)) == {Light.RED: 1, Light.GREEN: 2}


def test_a_table_without_one_case_names_it() -> None:
    with pytest.raises(TypeError, match="without green; not a case none"):
        total({Light.RED: 1}, Light)


def test_a_table_with_something_that_is_no_case_names_it() -> None:
    with pytest.raises(TypeError, match="without none; not a case amber"):
        total({"red": 1, "green": 2, "amber": 3}, ["red", "green"])


@pytest.mark.parametrize("table", [total({Light.RED: 1}, [Light.RED]), MOVES])
def test_nobody_can_change_a_table(table: object) -> None:
    assert not hasattr(table, "__setitem__")
    assert not hasattr(table, "pop")


def test_changing_the_dict_that_a_table_was_made_from_does_not_change_the_table() -> None:
    source = {Light.RED: 1, Light.GREEN: 2}
    table = total(source, Light)
    source[Light.RED] = 7
    assert table[Light.RED] == 1


def test_a_move_in_the_table_leads_to_its_state() -> None:
    assert move(MOVES, Light.RED, Turn.ON) is Light.GREEN


def test_a_move_that_is_not_in_the_table_raises_and_says_which() -> None:
    with pytest.raises(NoTransition, match="off cannot happen to a row that is red") as raised:
        move(MOVES, Light.RED, Turn.OFF)
    assert (raised.value.state, raised.value.signal) == (Light.RED, Turn.OFF)


def test_a_missing_move_crosses_a_process_border() -> None:
    copy = pickle.loads(pickle.dumps(NoTransition(Light.RED, Turn.OFF)))
    assert (copy.state, copy.signal, str(copy)) == (
        Light.RED,
        Turn.OFF,
        str(NoTransition(Light.RED, Turn.OFF)),
    )
