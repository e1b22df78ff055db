"""A relay at one look: how far messages come, how many there are, what waits longest, what was refused."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.console.relay_names import SQL, names
from holdfast.protocol.envelope import MESSAGE_KIND
from holdfast.protocol.schedule import HOUR, SECOND
from holdfast.relay import views
from holdfast.store import history
from holdfast.store.engine import Transaction

FUNNEL_MESSAGES_MAX = 5_000  # that the funnel looks at: it is drawn anew whenever something happens
FUNNEL_HOURS = 24
RATE_MINUTES = 60
RATE_KINDS = ("accepted", "delivered", "expired")
RATE_ENTRIES_MAX = 200_000  # of the history, that the chart looks at; what was before them it does not know
OLDEST_SHOWN = 8
QUEUES_SHOWN = 8

MINUTE = 60 * SECOND

CLOSED_BADLY = ("expired", "dropped", "quarantined", "moderated")


class Step(msgspec.Struct, frozen=True):
    """One rung of the ladder: how many came so far, and how many of those before them."""

    name: str
    count: int
    of: int
    meaning: str

    @property
    def percent(self) -> float:
        return 100.0 * self.count / self.of if self.of else 0.0


class Funnel(msgspec.Struct, frozen=True):
    """How far the messages of a stretch of time have come."""

    since: int
    is_cut: bool  # there are more than are looked at
    steps: tuple[Step, ...]
    waiting: int
    exits: tuple[tuple[str, int], ...]


def overview(transaction: Transaction, now: int) -> dict[str, Any]:
    """The overview's data, as far as it is in the database."""
    oldest = transaction.rows(SQL["oldest_open"], {"limit": OLDEST_SHOWN})
    queues = transaction.rows(SQL["longest_queues"], {"mesh": None, "limit": QUEUES_SHOWN, "skip": 0})
    head = history.head(transaction)
    return {
        "counts": views.counts(transaction, now),
        "head": head,
        "funnel": funnel(transaction, now),
        "oldest": oldest,
        "queues": queues,
        "names": names(transaction, [(row[1], row[2]) for row in oldest]),
        "size": transaction.size_bytes(),
    }


def funnel(transaction: Transaction, now: int) -> Funnel:
    """The ladder of the last day's messages."""
    wanted = {"since": now - FUNNEL_HOURS * HOUR, "kind": MESSAGE_KIND, "limit": FUNNEL_MESSAGES_MAX}
    ((accepted, first, since),) = transaction.rows(SQL["accepted_since"], wanted)
    states: dict[str, tuple[int, int]] = {}
    if first is not None:
        rows = transaction.rows(SQL["funnel"], {"seq": first})
        states = {state: (count, int(receipted or 0)) for state, count, receipted in rows}
    copies = sum(count for count, _ in states.values())
    delivered = states.get("delivered", (0, 0))[0]
    receipted = sum(receipted for _, receipted in states.values())
    return Funnel(
        since=since or now - FUNNEL_HOURS * HOUR,
        is_cut=accepted >= FUNNEL_MESSAGES_MAX,
        steps=(
            Step("accepted", accepted, accepted, "messages, on disk here"),
            Step("queued", copies, copies, "copies, one for each recipient"),
            Step("delivered", delivered, copies, "acknowledged by their recipients"),
            Step("receipted", receipted, copies, "proved by the recipients' signatures"),
        ),
        waiting=states.get("open", (0, 0))[0],
        exits=tuple((state, states[state][0]) for state in CLOSED_BADLY if state in states),
    )


class Rates:
    """What happened in each minute of the last hour. Minutes that are over are counted once: times never go back."""

    def __init__(self) -> None:
        self._known: dict[int, dict[str, int] | None] = {}

    def read(self, transaction: Transaction, now: int) -> dict[str, Any]:
        """Minutes as seconds since 1970, and for each kind that is drawn a number for each of them; None where nobody has counted."""
        last = now // MINUTE * MINUTE
        minutes = [last - (RATE_MINUTES - 1 - number) * MINUTE for number in range(RATE_MINUTES)]
        head = history.head(transaction)
        counted = {minute: self._known[minute] for minute in minutes if minute in self._known}
        missing = [minute for minute in minutes if minute not in counted]
        counted |= _counted(transaction, head, missing)
        self._known = {minute: found for minute, found in counted.items() if minute + MINUTE <= head.at}
        return {
            "at": [minute // SECOND for minute in minutes],
            "lines": {
                kind: [None if (found := counted[minute]) is None else found.get(kind, 0) for minute in minutes]
                for kind in RATE_KINDS
            },
        }


def _counted(transaction: Transaction, head: history.Head, minutes: Sequence[int]) -> dict[int, dict[str, int] | None]:
    """How many entries of each kind there are in each of these minutes; None for a minute that is too many entries ago."""
    if not minutes:
        return {}
    since = min(minutes)
    after = position_before(transaction, head, since)
    if after < head.seq - RATE_ENTRIES_MAX:
        first = _at_of(transaction, head.seq - RATE_ENTRIES_MAX, head.at)
        since = (first // MINUTE + 1) * MINUTE  # the first minute that is looked at as a whole
        after = position_before(transaction, head, since)
    found: dict[int, dict[str, int]] = {minute: {} for minute in minutes if minute >= since}
    for number, kind, count in transaction.rows(SQL["rates"], {"since": since, "unit": MINUTE, "after": after}):
        if (minute := since + number * MINUTE) in found:
            found[minute][kind] = count
    return {minute: found.get(minute) for minute in minutes}


def position_before(transaction: Transaction, head: history.Head, at: int) -> int:
    """The last position before a time. Times never go back in a history, so a few looks find it among millions."""
    low, high = head.anchor_seq, head.seq
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _at_of(transaction, middle, at) < at else (low, middle - 1)
    return low


def _at_of(transaction: Transaction, seq: int, otherwise: int) -> int:
    """The time of an entry, or of the next one where a damaged history lacks it; `otherwise` where it lacks all of them."""
    ((found,),) = transaction.rows(SQL["at_of"], {"seq": seq}) or [(otherwise,)]
    at: int = found
    return at
