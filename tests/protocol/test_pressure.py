"""How much of what is used up means what."""

import pytest

from holdfast.protocol.pressure import (
    TAKES_SENDS,
    TAKES_STREAMS,
    Pressure,
    Use,
    pressure_of,
    reserve_use,
    tightest,
)


@pytest.mark.parametrize(
    ("used", "pressure"),
    [
        (0, Pressure.NORMAL),
        (799, Pressure.NORMAL),
        (800, Pressure.HIGH),
        (949, Pressure.HIGH),
        (950, Pressure.FULL),
        (999, Pressure.FULL),
        (1000, Pressure.DEGRADED),
        (5000, Pressure.DEGRADED),
    ],
)
def test_the_steps_are_at_80_95_and_100_percent(used: int, pressure: Pressure) -> None:
    assert pressure_of(Use("x", used, 1000)) is pressure


def test_sends_end_before_streams_do() -> None:
    assert [pressure for pressure in Pressure if TAKES_SENDS[pressure]] == [Pressure.NORMAL, Pressure.HIGH]
    assert [pressure for pressure in Pressure if not TAKES_STREAMS[pressure]] == [Pressure.DEGRADED]


def test_a_reserve_is_used_up_as_the_free_space_falls_below_it() -> None:
    assert [reserve_use(free, 1000).percent for free in (10**9, 1000, 999, 200, 50, 0)] == [0, 0, 0, 80, 95, 100]


def test_what_there_is_least_left_of_decides() -> None:
    uses = [Use("a", 10, 100), Use("b", 9, 10), Use("c", 850, 1000)]
    assert tightest(uses).of == "b"
