"""The settings of agent hooks, with unit, range and default. From `hooks.json` in the home; unknown ones are refused."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.hook.layout import SETTINGS_NAME
from holdfast.protocol import hook_queue
from holdfast.store import faults, files

Count = Annotated[int, Meta(ge=1, le=100_000)]
Seconds = Annotated[float, Meta(ge=0.01, le=86_400)]
Type = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]*\Z", max_length=100)]


class Unreadable(faults.Fault):
    what = "these settings cannot be read"
    remedy = "Correct the file, or remove it: without it every setting has its default."


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hook settings of a home. The receiver reads `allow`, the worker the rest."""

    allow: tuple[Type, ...] = ()  # types that are stored beside the seven
    pending_max: Count = hook_queue.PENDING_MAX  # events of one session in memory
    guarded: bool = False  # places kept free for critical events, and no claims for a session that has too much
    critical_reserve: int = hook_queue.CRITICAL_RESERVE  # those places, when guarded
    claim_high: int | None = None  # when guarded: how many are too much; eight less than the most, unless given
    claim_low: int | None = None  # when guarded: at how few they are claimed again
    batch_rows: Count = 25  # claimed at once
    poll_s: Seconds = 1.0  # a look without being woken
    lock_cutoff_s: Seconds = 30.0  # after which a lock that was not renewed is nobody's
    renew_s: Seconds = 10.0
    handler_s: Seconds = 300.0  # for a handler; then it is cancelled, and the event tried again
    idle_s: Seconds = 5.0  # without anything to do, after which a session is forgotten
    stuck_after_s: Seconds = 60.0  # open for longer, an event is called stuck
    summary_s: Seconds = 15.0  # between two summaries in the log
    depth_warn: Count = 20  # of one session
    lag_warn_s: Seconds = 3.0
    warn_interval_s: Seconds = 15.0  # between two warnings about one session

    @property
    def queue(self) -> hook_queue.Settings:
        if not self.guarded:
            return hook_queue.Settings(self.pending_max)
        return hook_queue.guarded(self.pending_max, self.critical_reserve, self.claim_high, self.claim_low)


def load(home: Path) -> Settings:
    """The settings of a home."""
    path = home / SETTINGS_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Settings)
    except FileNotFoundError:
        return Settings()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(str(path), str(error)) from error


def is_type(name: str) -> bool:
    """Whether events can be allowed under this name."""
    try:
        msgspec.convert(name, Type)
    except msgspec.ValidationError:
        return False
    return True


def allow(home: Path, types: list[str]) -> Settings:
    """Add types to those that are stored; every other setting stays."""
    before = load(home)
    after = msgspec.structs.replace(before, allow=tuple(dict.fromkeys((*before.allow, *types))))
    after = msgspec.convert(msgspec.to_builtins(after), Settings)  # refuses what is no type
    path = home / SETTINGS_NAME
    kept = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    files.make_directory(home)
    files.replace(path, msgspec.json.format(msgspec.json.encode(kept | {"allow": after.allow}), indent=2) + b"\n")
    return after
