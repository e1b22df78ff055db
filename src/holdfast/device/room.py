"""How much room a home has for sends: waiting rows, the size of its database, the free space of its file system.

It is measured before every send, because it can change at any moment; what the figures mean is a table of the protocol.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from holdfast.device import outbox
from holdfast.device.device import Device
from holdfast.device.settings import Settings
from holdfast.protocol.outbox import Status
from holdfast.protocol.pressure import TAKES_SENDS, TAKES_STREAMS, Pressure, Use, pressure_of, reserve_use, tightest
from holdfast.protocol.refusal import Refusal, Refused

FreeBytes = Callable[[Path], int]
"""How much of the file system of a path a user may still write."""

_log = structlog.get_logger(__name__)


class RoomState(msgspec.Struct, frozen=True, kw_only=True):
    """The pressure, and the limit that is used up most."""

    pressure: Pressure = Pressure.NORMAL
    of: str = ""
    percent: int = 0


def free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class Room:
    """Measures the room, keeps the last state, and tells when the pressure changes."""

    def __init__(
        self, device: Device, settings: Settings, *, free_bytes: FreeBytes = free_bytes, told: Callable[[], None]
    ) -> None:
        self._device = device
        self.settings = settings
        self._free_bytes = free_bytes
        self._told = told
        self.state = RoomState()
        self._is_fresh = False

    def look(self) -> RoomState:
        """Measure the room now."""
        use = tightest(self._uses())
        before, self.state = self.state, RoomState(pressure=pressure_of(use), of=use.of, percent=use.percent)
        if before.pressure is not self.state.pressure:
            tell = _log.info if self.state.pressure is Pressure.NORMAL else _log.warning
            tell(f"outbox_pressure_{self.state.pressure}", of=use.of, used=use.used, most=use.most)
            self._told()
        return self.state

    def for_send(self) -> Refused | None:
        """The refusal of a new send, if there is no room for it."""
        return self._refusal(TAKES_SENDS)

    def for_stream(self) -> Refused | None:
        """The refusal of a new event stream, if there is no room for it."""
        return self._refusal(TAKES_STREAMS)

    def _refusal(self, takes: Mapping[Pressure, bool]) -> Refused | None:
        state = self._looked()
        if takes[state.pressure]:
            return None
        return Refused(Refusal.INSUFFICIENT_STORAGE, f"{state.percent} % of {state.of} is used")

    def _looked(self) -> RoomState:
        """The state of the room, measured once per turn of the event loop."""
        if not self._is_fresh:
            self.look()
            with suppress(RuntimeError):  # without a running loop every call measures
                asyncio.get_running_loop().call_soon(self._forget)
                self._is_fresh = True
        return self.state

    def _forget(self) -> None:
        self._is_fresh = False

    def _uses(self) -> list[Use]:
        counts, size_bytes = self._device.look(lambda tx: (outbox.count(tx), tx.size_bytes()))
        waiting = counts[Status.PENDING] + counts[Status.INFLIGHT]
        disk, rows_max = self.settings.disk, self.settings.outbox.rows_max
        uses = [
            Use("outbox.rows_max", waiting, rows_max),
            Use("disk.database_bytes_max", size_bytes, disk.database_bytes_max),
        ]
        if disk.reserved_bytes:
            uses.append(reserve_use(self._free_bytes(self._device.home.path), disk.reserved_bytes))
        return uses
