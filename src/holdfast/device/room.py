"""How much room a home has for what is sent: rows that wait, the size of its database, the space of its file system.

Looked at before every send, because it can be gone at any moment; what it means is decided in the protocol's table.
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
    """How tight it is, and of what there is least left."""

    pressure: Pressure = Pressure.NORMAL
    of: str = ""
    percent: int = 0


def free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class Room:
    """Looks, remembers, and says when it gets tighter or better."""

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
        """How it is now."""
        use = tightest(self._uses())
        before, self.state = self.state, RoomState(pressure=pressure_of(use), of=use.of, percent=use.percent)
        if before.pressure is not self.state.pressure:
            tell = _log.info if self.state.pressure is Pressure.NORMAL else _log.warning
            tell(f"outbox_pressure_{self.state.pressure}", of=use.of, used=use.used, most=use.most)
            self._told()
        return self.state

    def for_send(self) -> Refused | None:
        """Why there is no room for a new send, if so."""
        return self._refusal(TAKES_SENDS)

    def for_stream(self) -> Refused | None:
        """Why no event stream is begun now, if so."""
        return self._refusal(TAKES_STREAMS)

    def _refusal(self, takes: Mapping[Pressure, bool]) -> Refused | None:
        state = self._looked()
        if takes[state.pressure]:
            return None
        return Refused(Refusal.INSUFFICIENT_STORAGE, f"{state.percent} % of {state.of} is used")

    def _looked(self) -> RoomState:
        """How it is, looked at once for all who ask in the same turn of the loop."""
        if not self._is_fresh:
            self.look()
            with suppress(RuntimeError):  # nobody shares anything where no loop runs
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
