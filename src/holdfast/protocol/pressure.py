"""Pressure: what a home refuses as its disk or outbox fills up.

Nothing is ever deleted to make room. First there is a warning; then new sends are refused while waiting ones go out; in
the end new event streams are refused too. Incoming messages are taken as long as the disk takes them.
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
    HIGH = "high"  # a warning, nothing else
    FULL = "full"  # no new sends
    DEGRADED = "degraded"  # no new sends and no new event streams


class Use(msgspec.Struct, frozen=True):
    """How much of a limited resource is used, and its limit."""

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
    """The use of a reserve of free disk space: it counts as used as far as the free space falls below it."""
    return Use("disk.reserved_bytes", max(reserved_bytes - free_bytes, 0), reserved_bytes)


def tightest(uses: Iterable[Use]) -> Use:
    """The use with the highest percentage."""
    return max(uses, key=lambda use: use.percent)


def pressure_of(use: Use) -> Pressure:
    """The pressure that a use causes."""
    if use.percent >= DEGRADED_PERCENT:
        return Pressure.DEGRADED
    if use.percent >= FULL_PERCENT:
        return Pressure.FULL
    return Pressure.HIGH if use.percent >= HIGH_PERCENT else Pressure.NORMAL
