"""Every setting of a daemon, with its unit, range and default. From `daemon.toml` in the home, then the environment."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.store.settings import SettingsReader

ENVIRONMENT = "HOLDFAST_DAEMON_"
FILE_NAME = "daemon.toml"

Rows = Annotated[int, Meta(ge=10, le=100_000_000)]
Bytes = Annotated[int, Meta(ge=1_048_576, le=2**50)]
Reserve = Annotated[int, Meta(ge=0, le=2**50)]
Hours = Annotated[int, Meta(ge=1, le=876_000)]
Days = Annotated[int, Meta(ge=1, le=3_650)]
HostId = Annotated[str, Meta(min_length=1, max_length=255)]
Files = Annotated[int, Meta(ge=1, le=100)]


class ClonePolicy(StrEnum):
    """What a daemon does when its home is on another machine than before."""

    REFUSE = "refuse"
    WARN = "warn"
    ALLOW = "allow"


class OutboxSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of the outbox."""

    rows_max: Rows = 10_000  # not confirmed by the relay; sends are refused near this limit
    max_age_hours_override: Hours | None = (
        None  # after which a row dies unsent; by default as long as the relay remembers ids
    )


class DiskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of disk use."""

    database_bytes_max: Bytes = 10_737_418_240  # of device.db
    # Free space of the file system that is left to other programs: sends are refused before it is used; 0 reserves nothing.
    reserved_bytes: Reserve = 268_435_456


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of daemon.log, which a daemon started by `daemon up` writes."""

    bytes_max: Bytes = 104_857_600  # at which the file is rotated
    days_max: Days = 14  # after which it is rotated as well, and rotated files are deleted
    files_max: Files = 5  # rotated files that are kept


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A daemon's settings."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    clone_policy: ClonePolicy = ClonePolicy.REFUSE  # what to do when the home is found on another machine
    host_id: HostId | None = None  # identifies this machine, if its system has no unique id
    outbox: OutboxSettings = OutboxSettings()
    disk: DiskSettings = DiskSettings()
    log: LogSettings = LogSettings()


_READER = SettingsReader(Settings, ENVIRONMENT)


def load(home: Path, environment: Mapping[str, str]) -> Settings:
    """The settings of a home, from its file and the environment."""
    file = home / FILE_NAME
    return _READER.load(file if file.exists() else None, environment)


def changed(before: Settings, after: Settings) -> list[str]:
    """The names of the settings that differ."""
    return [name for (name, old), (_, new) in zip(_values(before), _values(after), strict=True) if old != new]


def _values(found: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name in found.__struct_fields__:
        value = getattr(found, name)
        if isinstance(value, msgspec.Struct):
            yield from _values(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
