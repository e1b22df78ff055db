"""How a daemon is, in sentences: what is tight is said before it is full, and comes with what to do."""

from typing import Any

import msgspec
import pytest

from holdfast.console.health import ROOM_REMEDY, signs
from holdfast.device.ipc_documents import Health, Report
from holdfast.protocol.pressure import Pressure


def _health(pressure: Pressure) -> Health:
    """A daemon that is well, but for its room."""
    known = {
        "connected": True,
        "pressure": pressure.value,
        "pressure_of": "disk.reserved_bytes",
        "pressure_percent": 96,
    }
    defaults = {str: "", int: 0, bool: False}
    fields: dict[str, Any] = {one.name: defaults.get(one.type) for one in msgspec.structs.fields(Health)}
    return Health(**{**fields, **known})


STATES = {Pressure.NORMAL: [], Pressure.HIGH: ["waiting"], Pressure.FULL: ["dead"], Pressure.DEGRADED: ["dead"]}


@pytest.mark.parametrize("pressure", Pressure)
def test_a_home_that_gets_tight_says_so(pressure: Pressure) -> None:
    found = [sign for sign in signs(_health(pressure), None, []) if sign.remedy == ROOM_REMEDY]
    assert [sign.state for sign in found] == STATES[pressure]
    assert all("96 % of disk.reserved_bytes" in sign.what for sign in found)


def test_a_sender_that_is_two_is_told_of_however_many_holes_somebody_else_left() -> None:
    def report(kind: str, who: str, sequence: int) -> Report:
        return Report(kind=kind, sender=who, sender_name=who, sequence=sequence, epoch="", event_id=None, at=sequence)

    reports = [*(report("hole", "ben", number) for number in range(100)), report("equivocation", "eve", 1)]
    said = [sign.what for sign in signs(_health(Pressure.NORMAL), None, reports)]
    assert said[0].startswith("eve put two different events into one place")
    assert [what for what in said if what.startswith("ben")] == [
        "ben sent something before a message of theirs that never came."
    ]
