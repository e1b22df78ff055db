"""The answers to a send whose id may have been used before: the daemon's to its caller, and the relay's to a sender.

The daemon recognises a repetition by the fingerprint of the request, the relay by the id of the sealed event. Neither ever
releases an id, so every case has one answer and repeating the question repeats the answer.
"""

from enum import StrEnum

import msgspec

from holdfast.protocol.outbox import Status
from holdfast.protocol.refusal import REFUSALS, Refusal
from holdfast.protocol.tables import total


class Fingerprint(StrEnum):
    """Whether the request's fingerprint is the one that the row was made with."""

    NOT_COMPARED = "not_compared"  # there is no row
    MATCHES = "matches"
    MISMATCHES = "mismatches"


class Field(StrEnum):
    """The fields of an answer, beside its status and the client_message_id that all have."""

    DUPLICATE = "duplicate"
    BROKER_MESSAGE_ID = "broker_message_id"
    HISTORY_ID = "history_id"
    REASON = "reason"  # the row's last_error
    DAEMON_FINGERPRINT_PREFIX = "daemon_fingerprint_prefix"  # of the row's own fingerprint
    BROKER_FINGERPRINT_PREFIX = "broker_fingerprint_prefix"  # of the event id that the relay has
    HISTORY_AVAILABLE = "history_available"
    FIRST_SEEN_AT = "first_seen_at"
    SKIPPED = "skipped"
    LOG_ID = "log_id"
    ANCHOR = "anchor"  # the relay's signature under the end of its history after this commit, or after a later one


class Answer(msgspec.Struct, frozen=True):
    """The daemon's answer to POST /v1/send."""

    http_status: int
    status: str | None = None  # `queued` or `inflight` of a 202
    conflict: str | None = None  # of a 409, whose code is always idempotency_key_reused
    carries: tuple[Field, ...] = ()
    inserts: bool = False  # a new row, in the transaction that found none


_CONFLICT_STATUS = REFUSALS[Refusal.IDEMPOTENCY_KEY_REUSED].http_status


def _conflict(text: str, *carries: Field) -> Answer:
    # Every conflict shows which fingerprint the daemon holds, so that a caller can see two canonical forms drift apart.
    return Answer(_CONFLICT_STATUS, conflict=text, carries=(*carries, Field.DAEMON_FINGERPRINT_PREFIX))


_MATCHES, _MISMATCHES = Fingerprint.MATCHES, Fingerprint.MISMATCHES
_RELAYED = (Field.DUPLICATE, Field.BROKER_MESSAGE_ID, Field.HISTORY_ID)

ANSWERS = total(
    {
        (None, Fingerprint.NOT_COMPARED): Answer(202, status="queued", inserts=True),
        (Status.PENDING, _MATCHES): Answer(202, status="queued"),
        (Status.PENDING, _MISMATCHES): _conflict("outbox_pending_fingerprint_mismatch"),
        (Status.INFLIGHT, _MATCHES): Answer(202, status="inflight"),
        (Status.INFLIGHT, _MISMATCHES): _conflict("outbox_inflight_fingerprint_mismatch"),
        (Status.DONE, _MATCHES): Answer(200, carries=_RELAYED),
        (Status.DONE, _MISMATCHES): _conflict("outbox_done_fingerprint_mismatch", Field.BROKER_MESSAGE_ID),
        # Even the right request is refused: what was given up is never retried under its old id.
        (Status.DEAD, _MATCHES): _conflict("outbox_dead_fingerprint_match", Field.REASON),
        (Status.DEAD, _MISMATCHES): _conflict("outbox_dead_fingerprint_mismatch"),
        (Status.ABORTED, _MATCHES): _conflict("outbox_aborted_fingerprint_match"),
        (Status.ABORTED, _MISMATCHES): _conflict("outbox_aborted_fingerprint_mismatch"),
    },
    [
        (None, Fingerprint.NOT_COMPARED),
        *((status, compared) for status in Status for compared in (_MATCHES, _MISMATCHES)),
    ],
)


class Earlier(StrEnum):
    """What the relay's dedupe row for this sender and client_message_id holds."""

    NOTHING = "nothing"
    SAME_EVENT = "same_event"
    OTHER_EVENT = "other_event"


class RelayAnswer(msgspec.Struct, frozen=True):
    """The relay's answer by what its dedupe row holds, decided before anything else may refuse the event."""

    http_status: int
    goes_on: bool = False  # the remaining steps of the accept decide; 201 if none of them refuses
    refusal: Refusal | None = None
    conflict: str | None = None
    carries: tuple[Field, ...] = ()


_ACCEPTED = (
    Field.DUPLICATE,
    Field.BROKER_MESSAGE_ID,
    Field.HISTORY_ID,
    Field.LOG_ID,
    Field.ANCHOR,
    Field.SKIPPED,
)
_REPEATED = RelayAnswer(200, carries=(*_ACCEPTED, Field.HISTORY_AVAILABLE, Field.FIRST_SEEN_AT))
_REUSED = RelayAnswer(
    _CONFLICT_STATUS,
    refusal=Refusal.IDEMPOTENCY_KEY_REUSED,
    conflict="request_fingerprint_mismatch",
    carries=(Field.BROKER_FINGERPRINT_PREFIX,),
)

# (earlier, history available): a pruned history changes the answer to a repetition, never whether it is one.
DUPLICATES = total(
    {
        (Earlier.NOTHING, False): RelayAnswer(201, goes_on=True, carries=_ACCEPTED),
        (Earlier.SAME_EVENT, True): _REPEATED,
        (Earlier.SAME_EVENT, False): _REPEATED,
        (Earlier.OTHER_EVENT, True): _REUSED,
        (Earlier.OTHER_EVENT, False): _REUSED,
    },
    [
        (Earlier.NOTHING, False),
        *((earlier, kept) for earlier in (Earlier.SAME_EVENT, Earlier.OTHER_EVENT) for kept in (True, False)),
    ],
)


def compared(row_fingerprint: bytes | None, request_fingerprint: bytes) -> Fingerprint:
    """The second half of the key into ANSWERS."""
    if row_fingerprint is None:
        return Fingerprint.NOT_COMPARED
    return Fingerprint.MATCHES if row_fingerprint == request_fingerprint else Fingerprint.MISMATCHES


def earlier(dedupe_event_id: bytes | None, event_id: bytes) -> Earlier:
    """The first half of the key into DUPLICATES."""
    if dedupe_event_id is None:
        return Earlier.NOTHING
    return Earlier.SAME_EVENT if dedupe_event_id == event_id else Earlier.OTHER_EVENT
