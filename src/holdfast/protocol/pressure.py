"""When there is too little room: how much of what is used up means what.

Nothing is ever thrown away to make room. First it is said, then new sends are refused while what waits goes out, and in the end
nothing new is begun at all; what comes from others is still taken, for as long as the disk takes it.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from holdfast.protocol.tables import total

HIGH_PERCENT = 80
FULL_PERCENT = 95
DEGRADED_PERCENT = 100


class Pressure(StrEnum):
    """How close a home is to having no room."""

    NORMAL = "normal"
    HIGH = "high"  # said, nothing else
    FULL = "full"  # no new sends
    DEGRADED = "degraded"  # nor new event streams


class Use(msgspec.Struct, frozen=True):
    """How much of something is used, and how much there may be of it."""

    of: str
    used: int
    most: int

    @property
    def percent(self) -> int:
        return 100 * self.used // self.most


TAKES_SENDS = total(
    {Pressure.NORMAL: True, Pressure.HIGH: True, Pressure.FULL: False, Pressure.DEGRADED: False}, Pressure
)
TAKES_STREAMS = total(
    {Pressure.NORMAL: True, Pressure.HIGH: True, Pressure.FULL: True, Pressure.DEGRADED: False}, Pressure
)


def reserve_use(free_bytes: int, reserved_bytes: int) -> Use:
    """A reserve that is kept free is used up as the free space falls below it."""
    return Use("disk.reserved_bytes", max(reserved_bytes - free_bytes, 0), reserved_bytes)


def tightest(uses: Iterable[Use]) -> Use:
    """What there is least left of."""
    return max(uses, key=lambda use: use.percent)


def pressure_of(use: Use) -> Pressure:
    """What a use means."""
    if use.percent >= DEGRADED_PERCENT:
        return Pressure.DEGRADED
    if use.percent >= FULL_PERCENT:
        return Pressure.FULL
    return Pressure.HIGH if use.percent >= HIGH_PERCENT else Pressure.NORMAL
