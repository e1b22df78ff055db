"""How a daemon is, in a few lines for somebody who is tired: what is connected, what waits and why, what went wrong."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.cli.output import show_time
from holdfast.protocol.schedule import SECOND

if TYPE_CHECKING:
    from holdfast.device.ipc_documents import Health

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def lines(health: "Health", now: int) -> Iterator[tuple[str, str]]:
    """What to show, each with its name."""
    started = f"process {health.pid}, up {age(health.uptime_s)}, Holdfast {health.daemon_version}"
    yield "daemon", started
    yield "member", f"{health.member_name} in {health.mesh_name}"
    yield "relay", _relay(health, now)
    yield "outbox", _outbox(health)
    yield "inbox", _inbox(health)
    if health.pressure != "normal":
        yield "room", f"{health.pressure}: {health.pressure_percent} % of {health.pressure_of} is used"
    if health.last_error is not None:
        at = health.last_error_at or now
        yield "last error", f"{_ago(at, now)} ({show_time(at)}): {health.last_error}"


def age(seconds: int) -> str:
    """A time as long as it is worth saying."""
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def _ago(at: int, now: int) -> str:
    return f"{age(max(0, now - at) // SECOND)} ago"


def _relay(health: "Health", now: int) -> str:
    since = f"for {age(max(0, now - health.since) // SECOND)} (since {show_time(health.since)})"
    if health.connected:
        return f"{health.relay}, connected {since}"
    return f"{health.relay}, NOT CONNECTED {since}: {health.detail or 'it was not met yet'}"


def _outbox(health: "Health") -> str:
    waiting = f"{health.queue_depth} waiting"
    if health.inflight:
        waiting += f" ({health.inflight} on their way)"
    if health.oldest_waiting_s is not None:
        waiting += f", the oldest for {age(health.oldest_waiting_s)}"
        waiting += f" ({health.oldest_waiting_reason})" if health.oldest_waiting_reason else ""
    advice = ": holdfast outbox list --status dead" if health.dead else ""
    return f"{waiting}; {health.scheduled} scheduled; {health.dead} given up{advice}"


def _inbox(health: "Health") -> str:
    advice = ": holdfast inbox --parked" if health.parked else ""
    waits = f"; {health.pending_count} waited at the relay at the last connection"
    return f"{health.unapplied} not acted on; {health.parked} parked{advice}{waits}"
