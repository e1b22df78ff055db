"""How a daemon is, as sentences: what is well, what is not, and what to do about it."""

from collections.abc import Sequence

import msgspec

from holdfast.device.ipc_documents import Health, Report
from holdfast.device.ipc_feed import Feed
from holdfast.protocol.pressure import Pressure
from holdfast.protocol.refusal import REFUSALS, Refusal

WAITING_LONG_S = 300  # after which something that waits is worth a look
ROOM_REMEDY = (
    "Make room on the disk, or in daemon.toml raise disk.database_bytes_max or outbox.rows_max, or lower "
    "disk.reserved_bytes, whichever it is; when it is used up, sends are refused."
)

_REPORTS = {
    "hole": (
        "sent something before a message of theirs that never came",
        "Ask them to run `holdfast trace`; the relay may have expired it.",
    ),
    "equivocation": (
        "put two different events into one place of their log",
        "Two homes may share one key. Ask them to find the copy and stop it.",
    ),
    "reset": ("came back with a new epoch: their state was lost or restored", "Nothing to do, if they know about it."),
}


class Sign(msgspec.Struct, frozen=True):
    """One thing to know; `link` is where more about it is."""

    state: str  # ok, waiting, dead: a good, a calm and a bad one
    what: str
    remedy: str = ""
    link: str = ""


def signs(health: Health, feed: Feed | None, reports: Sequence[Report], *, is_relay_away: bool = False) -> list[Sign]:
    """Everything worth saying, the worst first.

    With `is_relay_away` the reader knows that much: it is not told again, and what waits for the relay is nothing bad.
    """
    found = [
        *([] if is_relay_away else _relay(health)),
        *_room(health),
        *_outbox(health, is_relay_away),
        *_inbox(health),
        *_documents(feed),
        *_senders(reports),
    ]
    order = {"dead": 0, "waiting": 1, "ok": 2}
    return sorted(found, key=lambda sign: order[sign.state])


def remedy_of(error: str | None) -> str:
    """What helps against an error of the outbox: it begins with a refusal's code, where it is one."""
    code = (error or "").partition(":")[0].strip()
    return REFUSALS[Refusal(code)].sentence if code in set(Refusal) else ""


def _relay(health: Health) -> list[Sign]:
    if health.connected:
        return [Sign("ok", f"The relay {health.relay} is in reach.")]
    what = f"The relay {health.relay} is not in reach: {health.detail or 'no word yet'}."
    return [
        Sign("dead", what, "Nothing is lost: the outbox waits. See whether the relay runs, and the network is there.")
    ]


def _room(health: Health) -> list[Sign]:
    if health.pressure == Pressure.NORMAL:
        return []
    what = f"It gets tight: {health.pressure_percent} % of {health.pressure_of} is used ({health.pressure})."
    return [Sign("waiting" if health.pressure == Pressure.HIGH else "dead", what, ROOM_REMEDY)]


def _outbox(health: Health, is_relay_away: bool) -> list[Sign]:
    found = []
    if health.dead:
        what = f"{health.dead:,} message{'s were' if health.dead > 1 else ' was'} given up."
        found.append(Sign("dead", what, "Look at why, then send them again under new ids.", "/outbox?show=dead"))
    if health.queue_depth:
        age = health.oldest_waiting_s or 0
        reason = f" ({health.oldest_waiting_reason})" if health.oldest_waiting_reason else ""
        many = "message waits" if health.queue_depth == 1 else "messages wait"
        what = f"{health.queue_depth:,} {many} for the relay's word, the oldest for {age:,} s{reason}."
        state = "dead" if age > WAITING_LONG_S and not is_relay_away else "waiting"
        found.append(Sign(state, what, remedy_of(health.oldest_waiting_reason), "/outbox?show=waiting"))
    return found or [Sign("ok", "The relay has everything that was sent.")]


def _inbox(health: Health) -> list[Sign]:
    found = []
    if health.parked:
        what = (
            f"{health.parked:,} message{'s are' if health.parked > 1 else ' is'} parked: the handler failed five times."
        )
        found.append(Sign("dead", what, "Mend the handler, or mark them as dealt with.", "/inbox?show=parked"))
    if health.unapplied:
        what = f"{health.unapplied:,} message{'s wait' if health.unapplied > 1 else ' waits'} for an application."
        found.append(
            Sign("waiting", what, "Start the application that handles these messages.", "/inbox?show=unapplied")
        )
    return found or [Sign("ok", "Every message that arrived was acted on.")]


def _documents(feed: Feed | None) -> list[Sign]:
    if feed is None or feed.author is None:
        return []
    found = []
    if feed.conflicts:
        what = f"{feed.conflicts:,} document{'s are' if feed.conflicts > 1 else ' is'} in conflict, and read-only until somebody decides."
        found.append(Sign("waiting", what, "Look at both sides, and resolve.", "/documents?conflicts=true"))
    for relay in feed.relays:
        if relay.refused:
            what = f"The relay {relay.relay} does not take {relay.refused:,} version{'s' * (relay.refused > 1)} of documents."
            found.append(Sign("dead", what, "Edit or resolve those documents.", "/documents"))
        if not relay.live:
            found.append(Sign("waiting", f"The feed of {relay.relay} is not live: {relay.detail or 'no word yet'}."))
    return found or [Sign("ok", "Documents are as every relay has them.")]


def _senders(reports: Sequence[Report]) -> list[Sign]:
    """What each sender did, once, however often."""
    found = []
    for kind, who in dict.fromkeys((report.kind, report.sender_name or report.sender) for report in reports):
        what, remedy = _REPORTS.get(kind, (f"are reported: {kind}", ""))
        found.append(Sign("dead" if kind == "equivocation" else "waiting", f"{who} {what}.", remedy))
    return found
