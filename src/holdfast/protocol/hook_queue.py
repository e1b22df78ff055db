"""The bounded queue of one agent session, in memory, between the hook outbox and the handlers.

Critical events are never dropped and never overtake each other: if there is no room they go back to the outbox, and so
does everything behind them. The queue remembers every row that went back, because they become due in any order, and
takes only the first of them. Of bursty events only the latest matters: a later one replaces an earlier one of its type,
unless a critical event stands between them, and when the queue is full the oldest is dropped. A queue is a value; each
function returns the next one. An empty queue must be kept while rows of it are back in the outbox, unless the code that
claims rows keeps their order by itself.
"""

from enum import StrEnum

import msgspec

from holdfast.protocol.tables import total

PENDING_MAX = 32  # events waiting in one session
CRITICAL_RESERVE = 8  # places that bursty events may not take, with `guarded` settings
CLAIM_LOW_DIVISOR = 3  # with `guarded` settings a paused session resumes at a third of the high mark
SENT_BACK_ERROR = "backpressure:session_queue_full"
SENT_BACK_WAIT_S = 1  # one poll of the outbox; attempts stay as they are, so order has the best chance
COALESCED_LABEL = "coalesced:"  # then the type of the event that came in, even if one of another type was dropped
UNKNOWN_TYPE = "unknown"


class HookClass(StrEnum):
    """How much an event matters under pressure."""

    CRITICAL = "critical"
    BURSTY = "bursty"


# Every type that is not here is bursty.
CLASSES = {
    "session_start": HookClass.CRITICAL,
    "user_prompt_submit": HookClass.CRITICAL,
    "agent_stop": HookClass.CRITICAL,
    "session_end": HookClass.CRITICAL,
    "notification": HookClass.CRITICAL,
    "error": HookClass.CRITICAL,
    "subagent_stop": HookClass.CRITICAL,
    "compact": HookClass.CRITICAL,
    "subagent_start": HookClass.BURSTY,
    "tool_use": HookClass.BURSTY,
    "tool_done": HookClass.BURSTY,
}


class Item(msgspec.Struct, frozen=True):
    """A claimed row."""

    row_id: int
    event_type: str

    @property
    def is_critical(self) -> bool:
        return CLASSES.get(self.event_type) is HookClass.CRITICAL


class Settings(msgspec.Struct, frozen=True):
    """How much a session may hold. Reserve and watermarks are off unless `guarded`."""

    pending_max: int = PENDING_MAX
    critical_reserve: int = 0
    claim_high: int | None = None  # at this depth no more rows of the session are claimed
    claim_low: int = 0  # until it is down to this


def guarded(
    pending_max: int = PENDING_MAX,
    critical_reserve: int = CRITICAL_RESERVE,
    claim_high: int | None = None,
    claim_low: int | None = None,
) -> Settings:
    """Settings with reserve and watermarks on; values that contradict each other are brought into range."""
    high = max(1, min(pending_max - CRITICAL_RESERVE if claim_high is None else claim_high, pending_max))
    low = high // CLAIM_LOW_DIVISOR if claim_low is None else claim_low
    return Settings(pending_max, max(0, min(critical_reserve, pending_max)), high, max(0, min(low, high - 1)))


class Queue(msgspec.Struct, frozen=True):
    """The events of one session that are in memory."""

    pending: tuple[Item, ...] = ()
    handling: Item | None = None
    away: frozenset[int] = frozenset()  # rows that went back to the outbox: nothing may pass the first of them
    is_paused: bool = False  # no row of this session is to be claimed


class Verdict(StrEnum):
    """The outcome for the row that was offered."""

    QUEUED = "queued"
    REPLACED = "replaced"  # it replaced an earlier one
    DROPPED = "dropped"  # bursty, and no room: it is itself coalesced
    SENT_BACK = "sent_back"
    KNOWN = "known"  # it is in the queue already: claimed twice


# Whether the outbox row stays locked by this worker.
STAYS = total(
    {
        Verdict.QUEUED: True,
        Verdict.REPLACED: True,
        Verdict.DROPPED: False,
        Verdict.SENT_BACK: False,
        Verdict.KNOWN: True,
    },
    Verdict,
)


class Coalesced(msgspec.Struct, frozen=True):
    """A row that is dropped in favour of another; the label is stored as its error."""

    row_id: int
    label: str


class Outcome(msgspec.Struct, frozen=True):
    """The result of an offer: the next queue, what happened to the row, and which rows were coalesced."""

    queue: Queue
    verdict: Verdict
    coalesced: tuple[Coalesced, ...] = ()


DEFAULT = Settings()


def offer(queue: Queue, item: Item, settings: Settings = DEFAULT) -> Outcome:
    """Put a claimed row into the queue if it has a place there; the outcome says what happened."""
    if item.row_id in _row_ids(queue):
        return Outcome(queue, Verdict.KNOWN)
    if any(row_id < item.row_id for row_id in queue.away):
        return Outcome(_sent_back(queue, item), Verdict.SENT_BACK)
    place = _place_critical if item.is_critical else _place_bursty
    pending, gone, verdict = place(queue.pending, item, settings)
    if verdict is Verdict.SENT_BACK:
        return Outcome(_sent_back(queue, item), Verdict.SENT_BACK)
    label = COALESCED_LABEL + (item.event_type or UNKNOWN_TYPE)
    return Outcome(
        _settled(msgspec.structs.replace(queue, pending=pending, away=queue.away - {item.row_id}), settings),
        verdict,
        tuple(Coalesced(row.row_id, label) for row in gone),
    )


def must_precede(earlier: Item, later: Item) -> bool:
    """Whether `earlier` must end before `later` may start: only two bursty events may change places."""
    return earlier.row_id < later.row_id and (earlier.is_critical or later.is_critical)


def take(queue: Queue) -> Queue:
    """Move the first waiting event into a handler's hands; the one before must be finished."""
    if queue.handling is not None:
        raise ValueError(f"row {queue.handling.row_id} is still being handled")
    if not queue.pending:
        raise ValueError("nothing waits in this session")
    return msgspec.structs.replace(queue, pending=queue.pending[1:], handling=queue.pending[0])


def finish(queue: Queue, settings: Settings = DEFAULT) -> Queue:
    """Remove the event in hand, however its handling ended."""
    return _settled(msgspec.structs.replace(queue, handling=None), settings)


def hold(queue: Queue) -> tuple[tuple[Item, ...], Queue]:
    """Return all that waits, and a queue that takes nothing later until the event in hand comes back to be retried."""
    if queue.handling is None:
        raise ValueError("nothing is being handled in this session")
    return queue.pending, Queue(away=queue.away | _row_ids(queue))


def forget(queue: Queue, row_id: int, settings: Settings = DEFAULT) -> Queue:
    """Remove a row that ended elsewhere or that another worker has, so that nothing waits for it any more."""
    pending = tuple(item for item in queue.pending if item.row_id != row_id)
    return _settled(msgspec.structs.replace(queue, pending=pending, away=queue.away - {row_id}), settings)


_Placed = tuple[tuple[Item, ...], tuple[Item, ...], Verdict]  # what waits now, what was coalesced, the item's verdict


def _place_critical(pending: tuple[Item, ...], item: Item, settings: Settings) -> _Placed:
    excess = len(pending) + 1 - settings.pending_max
    bursty = [row for row in pending if not row.is_critical]
    if excess > len(bursty):
        return pending, (), Verdict.SENT_BACK
    gone = tuple(bursty[: max(0, excess)])
    return (*_without(pending, gone), item), gone, Verdict.QUEUED


def _place_bursty(pending: tuple[Item, ...], item: Item, settings: Settings) -> _Placed:
    earlier = _same_in_segment(pending, item.event_type)
    if earlier is not None:
        return _swapped(pending, earlier, item), (earlier,), Verdict.REPLACED
    bursty = [row for row in pending if not row.is_critical]
    excess = max(
        len(pending) + 1 - settings.pending_max,
        len(bursty) + 1 - (settings.pending_max - settings.critical_reserve),
    )
    if excess > len(bursty):
        return pending, (item,), Verdict.DROPPED
    gone = tuple(bursty[: max(0, excess)])
    return (*_without(pending, gone), item), gone, Verdict.QUEUED


def _same_in_segment(pending: tuple[Item, ...], event_type: str) -> Item | None:
    """The waiting event of this type, if no critical one follows it."""
    for row in reversed(pending):
        if row.is_critical:
            return None
        if row.event_type == event_type:
            return row
    return None


def _row_ids(queue: Queue) -> set[int]:
    in_hand = () if queue.handling is None else (queue.handling,)
    return {item.row_id for item in (*queue.pending, *in_hand)}


def _swapped(pending: tuple[Item, ...], old: Item, new: Item) -> tuple[Item, ...]:
    return tuple(new if row is old else row for row in pending)


def _without(pending: tuple[Item, ...], gone: tuple[Item, ...]) -> tuple[Item, ...]:
    return tuple(row for row in pending if row not in gone)


def _sent_back(queue: Queue, item: Item) -> Queue:
    return msgspec.structs.replace(queue, away=queue.away | {item.row_id})


def _settled(queue: Queue, settings: Settings) -> Queue:
    """The queue with its pause updated: it begins at the high mark and ends only at the low one."""
    if settings.claim_high is None:
        return queue
    depth = len(queue.pending) + (queue.handling is not None)
    is_paused = depth > settings.claim_low if queue.is_paused else depth >= settings.claim_high
    return msgspec.structs.replace(queue, is_paused=is_paused)
