"""Refusals: every way in which Holdfast says no. One enum, used on the wire, in the log and in the history, and its table.

A refusal is deliberate; a failure of the world (a full disk, a lost connection) is a fault and not listed here. Whether
it helps to offer the same bytes again is decided here and nowhere else: after a `temporary` refusal it may, after a
`permanent` one it does not.
"""

from enum import StrEnum

import msgspec

from holdfast.protocol.tables import total

PROBLEM_TYPE = "urn:holdfast:refusal:"  # with the code, the `type` of a problem document


class Refusal(StrEnum):
    """A deliberate no. The value is its code on the wire."""

    # to an event that somebody publishes
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    BAD_EVENT_ID = "bad_event_id"
    BAD_SIGNATURE = "bad_signature"
    UNREADABLE = "unreadable"
    KIND_UNSUPPORTED = "kind_unsupported"
    CLOCK_AHEAD = "clock_ahead"
    EVENT_TOO_OLD = "event_too_old"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    NOT_A_MEMBER = "not_a_member"
    MESH_UNKNOWN = "mesh_unknown"
    DESTINATION_KIND_UNSUPPORTED = "destination_kind_unsupported"
    DESTINATION_UNKNOWN = "destination_unknown"
    MAY_NOT_POST = "may_not_post"
    RATE_LIMITED = "rate_limited"
    QUEUE_FULL = "queue_full"
    HELD_BACK = "held_back"
    STALE_KEY = "stale_key"
    WAITING_FOR_KEY = "waiting_for_key"
    RECEIPT_EARLY = "receipt_early"
    RECEIPT_UNKNOWN = "receipt_unknown"
    MAX_AGE_PASSED = "max_age_passed"
    UNAVAILABLE = "unavailable"
    # to an event of administration, or to a snapshot
    NOT_PERMITTED = "not_permitted"
    COUNTER_NOT_INCREASING = "counter_not_increasing"
    NAME_TAKEN = "name_taken"
    EPOCH_SUPERSEDED = "epoch_superseded"
    GRANT_MISSING = "grant_missing"
    COUNTERSIGNATURE_MISSING = "countersignature_missing"
    INVITE_INVALID = "invite_invalid"
    KEY_TAKEN = "key_taken"
    LAST_ADMIN = "last_admin"
    SUBJECT_UNKNOWN = "subject_unknown"
    AUTHOR_NOT_ADMITTED = "author_not_admitted"
    CLOCK_REUSED = "clock_reused"
    TOO_MANY_CONFLICTS = "too_many_conflicts"
    MESH_FULL = "mesh_full"
    # to somebody who reads: queue, feed, export
    AUTH_REQUIRED = "auth_required"
    AUTH_FAILED = "auth_failed"
    AUTHOR_ONLY = "author_only"
    MODE_REQUIRED = "mode_required"
    KINDS_REQUIRED = "kinds_required"
    KIND_OUT_OF_RANGE = "kind_out_of_range"
    ONE_AUTHOR_REQUIRED = "one_author_required"
    LIMIT_WITH_BOOTSTRAP = "limit_with_bootstrap"
    LIMIT_WITH_LIVE = "limit_with_live"
    CURSOR_EXPIRED = "cursor-expired"  # the feed's protocol spells these two with hyphens
    CURSOR_AHEAD = "cursor-ahead"
    OTHER_LOG = "other_log"
    BOOTSTRAP_EXPIRED = "bootstrap_expired"
    TOO_MANY_SUBSCRIPTIONS = "too_many_subscriptions"
    TABLE_UNKNOWN = "table_unknown"
    COLUMN_UNKNOWN = "column_unknown"
    RANGE_INVALID = "range_invalid"
    RANGE_PRUNED = "range_pruned"
    CONSUMER_UNKNOWN = "consumer_unknown"
    CHECKPOINT_BACKWARDS = "checkpoint_backwards"
    SOCKET_ONLY = "socket_only"
    ACK_UNKNOWN = "ack_unknown"
    # to a call of the daemon or of the relay over HTTP, or of the library
    TOKEN_INVALID = "token_invalid"  # noqa: S105 - the code of a refusal, not a secret
    TOKEN_EXPIRED = "token_expired"  # noqa: S105 - likewise
    TOKEN_IN_QUERY = "token_in_query"  # noqa: S105 - likewise
    HOST_NOT_ALLOWED = "host_not_allowed"
    ORIGIN_NOT_ALLOWED = "origin_not_allowed"
    DAEMON_BUSY = "daemon_busy"
    TOO_MANY_STREAMS = "too_many_streams"
    INSUFFICIENT_STORAGE = "insufficient_storage"
    IDEMPOTENCY_KEYS_DIFFER = "idempotency_keys_differ"
    NOT_FOUND = "not_found"
    REQUEUE_OF_DONE = "requeue_of_done"
    REQUEUE_OF_ABORTED = "requeue_of_aborted"
    REQUEUE_OF_INFLIGHT = "requeue_of_inflight"
    REQUEUE_UNCONFIRMED = "requeue_unconfirmed"
    REQUEUE_OF_RECEIPTED = "requeue_of_receipted"
    REQUEUE_OF_OTHER = "requeue_of_other"
    CANCEL_TOO_LATE = "cancel_too_late"
    SEQUENCE_TAKEN = "sequence_taken"
    TOO_MANY_OLD_KEYS = "too_many_old_keys"
    AUTHOR_MISSING = "author_missing"
    AUTHOR_PRESENT = "author_present"
    DOCUMENT_CONFLICTED = "document_conflicted"
    DOCUMENT_NOT_CONFLICTED = "document_not_conflicted"
    DOCUMENT_CHANGED = "document_changed"
    DOCUMENT_FULL = "document_full"
    # to a hook event
    HOOK_INVALID_JSON = "hook_invalid_json"
    HOOK_PAYLOAD_NOT_OBJECT = "hook_payload_not_object"
    HOOK_PAYLOAD_TOO_LARGE = "hook_payload_too_large"
    HOOK_EVENT_UNKNOWN = "hook_event_unknown"
    HOOK_AGENT_UNKNOWN = "hook_agent_unknown"
    SESSION_QUEUE_FULL = "session_queue_full"
    # to a whole connection
    BINARY_FRAME = "binary_frame"
    FRAME_TOO_LARGE = "frame_too_large"
    SLOW_READER = "slow_reader"
    SLOW_WRITER = "slow_writer"
    SHUTTING_DOWN = "shutting_down"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    REPLACED_BY_NEWER_CONNECTION = "replaced_by_newer_connection"
    MEMBER_ALREADY_CONNECTED = "member_already_connected"
    MEMBER_REVOKED = "member_revoked"
    FEATURE_UNAVAILABLE = "feature_unavailable"
    FEATURE_PARAM_INVALID = "feature_param_invalid"
    FEATURE_PARAM_BELOW_FLOOR = "feature_param_below_floor"
    # to the start of a program
    OUTBOX_MAX_AGE_ABOVE_DEDUPE_WINDOW = "outbox_max_age_above_dedupe_window"
    KEY_SUPERSEDED = "key_superseded"
    HOST_CHANGED = "host_changed"
    PERSISTENT_IN_CI = "persistent_in_ci"


class Subject(StrEnum):
    """What is refused. Only a refusal of the event itself may end the row that carries it."""

    EVENT = "event"
    READ = "read"
    CALL = "call"
    HOOK = "hook"
    CONNECTION = "connection"
    START = "start"


class Prefix(StrEnum):
    """The machine-readable first word of a NIP-01 message."""

    INVALID = "invalid"
    BLOCKED = "blocked"
    RESTRICTED = "restricted"
    RATE_LIMITED = "rate-limited"
    AUTH_REQUIRED = "auth-required"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    DUPLICATE = "duplicate"  # only with a yes: clients read it as success


class Lasting(StrEnum):
    """Whether it may help to offer the same bytes again later."""

    PERMANENT = "permanent"
    TEMPORARY = "temporary"


class RefusalRow(msgspec.Struct, frozen=True):
    """How one refusal is sent over HTTP, in a NIP-01 message and in a WebSocket close, and what it tells a person."""

    subject: Subject
    lasting: Lasting
    http_status: int
    prefix: Prefix
    sentence: str
    close_code: int | None = None  # only if it ends the connection

    @property
    def is_permanent(self) -> bool:
        return self.lasting is Lasting.PERMANENT


class Refused(Exception):
    """Raised to refuse a request: which refusal, and in `detail` what exactly was wrong and where."""

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super().__init__(f"{refusal}: {detail}")
        self.refusal = refusal
        self.detail = detail

    def __reduce__(self) -> tuple[type["Refused"], tuple[Refusal, str]]:
        return type(self), (self.refusal, self.detail)  # so that it can be pickled for another process


_EVENT, _READ, _CALL = Subject.EVENT, Subject.READ, Subject.CALL
_HOOK, _CONNECTION, _START = Subject.HOOK, Subject.CONNECTION, Subject.START
_PERMANENT, _TEMPORARY = Lasting.PERMANENT, Lasting.TEMPORARY
_INVALID, _BLOCKED, _RESTRICTED, _ERROR = Prefix.INVALID, Prefix.BLOCKED, Prefix.RESTRICTED, Prefix.ERROR
_AUTH_REQUIRED, _UNSUPPORTED, _RATE_LIMITED = Prefix.AUTH_REQUIRED, Prefix.UNSUPPORTED, Prefix.RATE_LIMITED

# fmt: off
REFUSALS = total({
    Refusal.MALFORMED: RefusalRow(_EVENT, _PERMANENT, 400, _INVALID, "Correct what the detail names, then send it again."),
    Refusal.TOO_LARGE: RefusalRow(_EVENT, _PERMANENT, 413, _INVALID, "Send less at once: a shorter body, less meta or fewer mentions."),
    Refusal.BAD_EVENT_ID: RefusalRow(_EVENT, _PERMANENT, 400, _INVALID, "The id is not the hash of the event. Build and sign the event again; never edit a signed one."),
    Refusal.BAD_SIGNATURE: RefusalRow(_EVENT, _PERMANENT, 400, _INVALID, "The signature does not match this key and id. Sign the event again with the sender's key."),
    Refusal.UNREADABLE: RefusalRow(_EVENT, _PERMANENT, 422, _INVALID, "No key here opens it. Ask the sender to seal it to your current key and send it again."),
    Refusal.KIND_UNSUPPORTED: RefusalRow(_EVENT, _PERMANENT, 400, _BLOCKED, "Send a message, a receipt, administration or a snapshot: this relay takes no other kinds."),
    Refusal.CLOCK_AHEAD: RefusalRow(_EVENT, _TEMPORARY, 400, _INVALID, "The event is dated in the future. Set this device's clock; the daemon then sends it again."),
    Refusal.EVENT_TOO_OLD: RefusalRow(_EVENT, _PERMANENT, 400, _INVALID, "It is so old that the relay could not recognise a repetition. Requeue it under a new id."),
    Refusal.IDEMPOTENCY_KEY_REUSED: RefusalRow(_EVENT, _PERMANENT, 409, _INVALID, "This client_message_id was already used for another message. Choose a new one."),
    Refusal.NOT_A_MEMBER: RefusalRow(_EVENT, _PERMANENT, 403, _RESTRICTED, "This key belongs to no member of the mesh. Ask an admin for an invitation, or to add it."),
    Refusal.MESH_UNKNOWN: RefusalRow(_EVENT, _PERMANENT, 404, _RESTRICTED, "This relay has no such mesh. Check its name and the relay's address."),
    Refusal.DESTINATION_KIND_UNSUPPORTED: RefusalRow(_EVENT, _PERMANENT, 400, _UNSUPPORTED, "This relay does not serve work queues. Send to a member or to a topic."),
    Refusal.DESTINATION_UNKNOWN: RefusalRow(_EVENT, _PERMANENT, 404, _INVALID, "The mesh has no such member or topic. Check the name, or create the topic."),
    Refusal.MAY_NOT_POST: RefusalRow(_EVENT, _PERMANENT, 403, _RESTRICTED, "Only who holds a topic's key may post to it. Subscribe, and wait until the key is granted."),
    Refusal.RATE_LIMITED: RefusalRow(_EVENT, _TEMPORARY, 429, _RATE_LIMITED, "Too many events in a short time. Wait as long as Retry-After says; the daemon does so by itself."),
    # 429 and not 5xx: the relay is healthy, and a full recipient should not wake its operator
    Refusal.QUEUE_FULL: RefusalRow(_EVENT, _TEMPORARY, 429, _ERROR, "The recipient has too much waiting. It is offered again until there is room."),
    Refusal.HELD_BACK: RefusalRow(_EVENT, _TEMPORARY, 424, _ERROR, "Nothing to do: an earlier message to this destination goes first, and this one follows by itself."),
    Refusal.STALE_KEY: RefusalRow(_EVENT, _TEMPORARY, 412, _ERROR, "Nothing to do: a key was replaced, and the daemon seals the message again with the new one."),
    Refusal.WAITING_FOR_KEY: RefusalRow(_EVENT, _TEMPORARY, 412, _ERROR, "The topic's key is not granted yet. Wait: an admin's daemon grants it when it is next online."),
    Refusal.RECEIPT_EARLY: RefusalRow(_EVENT, _TEMPORARY, 424, _ERROR, "Nothing to do: the receipt is sent again once the message is acknowledged."),
    Refusal.RECEIPT_UNKNOWN: RefusalRow(_EVENT, _PERMANENT, 404, _INVALID, "Nothing to do: no such message waits for a receipt of this member; it may have one already."),
    Refusal.MAX_AGE_PASSED: RefusalRow(_EVENT, _PERMANENT, 410, _ERROR, "It waited too long to be sent safely. Requeue it under a new id if it still matters."),
    Refusal.UNAVAILABLE: RefusalRow(_EVENT, _TEMPORARY, 503, _ERROR, "This cannot be done at the moment. Try again shortly."),

    Refusal.NOT_PERMITTED: RefusalRow(_EVENT, _PERMANENT, 403, _RESTRICTED, "This key or token may not do that. Ask an admin of the mesh, or the relay's operator."),
    Refusal.COUNTER_NOT_INCREASING: RefusalRow(_EVENT, _PERMANENT, 409, _INVALID, "A later decision of the same signer is already in force. If yours should count, make it again."),
    Refusal.NAME_TAKEN: RefusalRow(_EVENT, _PERMANENT, 409, _INVALID, "That name is in use. Choose another."),
    Refusal.EPOCH_SUPERSEDED: RefusalRow(_EVENT, _PERMANENT, 409, _INVALID, "Another admin replaced this topic's key first. Rotate it again only if that is still needed."),
    # Permanent: a retry would hold up the lane in which the missing grants must come.
    Refusal.GRANT_MISSING: RefusalRow(_EVENT, _PERMANENT, 409, _INVALID, "Grant the key to the member that the detail names, then advance again."),
    Refusal.COUNTERSIGNATURE_MISSING: RefusalRow(_EVENT, _PERMANENT, 400, _INVALID, "The key that the action names must sign it too. Do this in the home that holds that key."),
    Refusal.INVITE_INVALID: RefusalRow(_EVENT, _PERMANENT, 403, _RESTRICTED, "This invitation is wrong, used, expired or withdrawn. Ask an admin for a new one."),
    Refusal.KEY_TAKEN: RefusalRow(_EVENT, _PERMANENT, 409, _INVALID, "This key belongs, or once belonged, to a member. Make a new key pair."),
    Refusal.LAST_ADMIN: RefusalRow(_EVENT, _PERMANENT, 409, _INVALID, "A mesh keeps at least one admin. Make another member an admin first."),
    Refusal.SUBJECT_UNKNOWN: RefusalRow(_EVENT, _PERMANENT, 404, _INVALID, "There is no such member, topic, author or consumer. Check the name that the detail quotes."),
    # Temporary: once a member has admitted the author the same snapshot is taken, and until then no edit may be given up.
    Refusal.AUTHOR_NOT_ADMITTED: RefusalRow(_EVENT, _TEMPORARY, 403, _RESTRICTED, "This relay does not keep this author's documents. Ask a member to admit the author."),
    # The relay may neither drop the second nor take both: it cannot know whether they say the same.
    Refusal.CLOCK_REUSED: RefusalRow(_EVENT, _PERMANENT, 409, _INVALID, "Another snapshot has the same clock. Fetch it, compare, and publish with a counter of your own."),
    Refusal.TOO_MANY_CONFLICTS: RefusalRow(_EVENT, _PERMANENT, 409, _INVALID, "Too many edits of this document conflict. Resolve them with a snapshot that follows them all."),
    # Permanent: in its lane a retry would hold up the decisions that make room.
    Refusal.MESH_FULL: RefusalRow(_EVENT, _PERMANENT, 409, _INVALID, "A mesh may have no more of what the detail names. The relay's operator sets that limit."),

    Refusal.AUTH_REQUIRED: RefusalRow(_READ, _TEMPORARY, 401, _AUTH_REQUIRED, "Answer the AUTH challenge, then ask again."),
    Refusal.AUTH_FAILED: RefusalRow(_READ, _PERMANENT, 401, _AUTH_REQUIRED, "Sign the challenge of this connection, for this relay's address, with a clock that is right."),
    Refusal.AUTHOR_ONLY: RefusalRow(_READ, _PERMANENT, 403, _RESTRICTED, "Documents are served to their author only. Authenticate with the author's key."),
    Refusal.MODE_REQUIRED: RefusalRow(_READ, _PERMANENT, 400, _INVALID, 'Set mode to "bootstrap" or "tail".'),
    Refusal.KINDS_REQUIRED: RefusalRow(_READ, _PERMANENT, 400, _INVALID, "List the kinds that you want."),
    Refusal.KIND_OUT_OF_RANGE: RefusalRow(_READ, _PERMANENT, 400, _INVALID, "The feed carries kinds 40000 to 49999 only. Use REQ for others."),
    Refusal.ONE_AUTHOR_REQUIRED: RefusalRow(_READ, _PERMANENT, 400, _INVALID, "Name exactly one author. Open another subscription for each further author."),
    Refusal.LIMIT_WITH_BOOTSTRAP: RefusalRow(_READ, _PERMANENT, 400, _INVALID, "A bootstrap gives the whole current state. Leave limit out."),
    Refusal.LIMIT_WITH_LIVE: RefusalRow(_READ, _PERMANENT, 400, _INVALID, "A limit would leave a gap between the replay and live. Leave out limit, or live."),
    Refusal.CURSOR_EXPIRED: RefusalRow(_READ, _PERMANENT, 410, _INVALID, "What follows this cursor was pruned. Bootstrap, then tail from the snapshot_seq that it gives."),
    Refusal.CURSOR_AHEAD: RefusalRow(_READ, _PERMANENT, 409, _INVALID, "The cursor is past the end of this log, which may have been restored. Bootstrap again."),
    Refusal.OTHER_LOG: RefusalRow(_READ, _PERMANENT, 409, _INVALID, "The cursor, or the log id that was named, belongs to another log. Start over with this one."),
    Refusal.BOOTSTRAP_EXPIRED: RefusalRow(_READ, _TEMPORARY, 503, _ERROR, "The bootstrap took too long and was ended. Start it again."),
    Refusal.TOO_MANY_SUBSCRIPTIONS: RefusalRow(_READ, _TEMPORARY, 429, _RATE_LIMITED, "This connection may open no more subscriptions. Close one first."),
    Refusal.TABLE_UNKNOWN: RefusalRow(_READ, _PERMANENT, 404, _INVALID, "There is no such table. Ask for one that the detail names."),
    Refusal.COLUMN_UNKNOWN: RefusalRow(_READ, _PERMANENT, 400, _INVALID, "There is no such column. Ask for columns that the detail names."),
    Refusal.RANGE_INVALID: RefusalRow(_READ, _PERMANENT, 400, _INVALID, "Give after and until as whole numbers, with after not above until."),
    Refusal.RANGE_PRUNED: RefusalRow(_READ, _PERMANENT, 410, _INVALID, "The start of this range was pruned. Start at min_seq; the certificate will name the gap."),
    Refusal.CONSUMER_UNKNOWN: RefusalRow(_READ, _PERMANENT, 404, _INVALID, "No such consumer is registered. Ask the relay's operator to register it."),
    Refusal.CHECKPOINT_BACKWARDS: RefusalRow(_READ, _PERMANENT, 409, _INVALID, "A checkpoint only moves forward: what lies behind it may be gone. Give a later position."),
    Refusal.SOCKET_ONLY: RefusalRow(_READ, _PERMANENT, 403, _RESTRICTED, "Message bodies are only given out on the daemon's Unix socket. Ask there."),
    Refusal.ACK_UNKNOWN: RefusalRow(_READ, _PERMANENT, 404, _RESTRICTED, "These positions are not in this member's queue. Acknowledge only what this queue sent."),

    Refusal.TOKEN_INVALID: RefusalRow(_CALL, _PERMANENT, 401, _AUTH_REQUIRED, "Send the current token in the header, as Authorization: Bearer TOKEN."),
    Refusal.TOKEN_EXPIRED: RefusalRow(_CALL, _PERMANENT, 401, _AUTH_REQUIRED, "This token has expired. Ask the relay's operator for a new one."),
    Refusal.TOKEN_IN_QUERY: RefusalRow(_CALL, _PERMANENT, 400, _INVALID, "A token in a URL ends up in logs. Replace this token, and send the new one in a header."),
    Refusal.HOST_NOT_ALLOWED: RefusalRow(_CALL, _PERMANENT, 403, _RESTRICTED, "Call the daemon as localhost, 127.0.0.1 or [::1]."),
    Refusal.ORIGIN_NOT_ALLOWED: RefusalRow(_CALL, _PERMANENT, 403, _RESTRICTED, "Web pages of other sites may not call the daemon. Use a program, or allow the origin."),
    Refusal.DAEMON_BUSY: RefusalRow(_CALL, _TEMPORARY, 429, _RATE_LIMITED, "Too many requests at once. Wait until some have ended, then repeat this one with the same id."),
    Refusal.TOO_MANY_STREAMS: RefusalRow(_CALL, _TEMPORARY, 429, _RATE_LIMITED, "Too many event streams are open. Close one first."),
    Refusal.INSUFFICIENT_STORAGE: RefusalRow(_CALL, _TEMPORARY, 507, _ERROR, "The outbox has reached its limit. Let it drain, or prune it, then repeat this with the same id."),
    Refusal.IDEMPOTENCY_KEYS_DIFFER: RefusalRow(_CALL, _PERMANENT, 400, _INVALID, "The header and the body name different ids. Send one of them, or the same id in both."),
    Refusal.NOT_FOUND: RefusalRow(_CALL, _PERMANENT, 404, _INVALID, "There is nothing of that name here. Check the id or the path."),
    Refusal.REQUEUE_OF_DONE: RefusalRow(_CALL, _PERMANENT, 409, _INVALID, "The relay has this message, or its recipient has. If it must arrive twice, send it as a new message."),
    Refusal.REQUEUE_OF_ABORTED: RefusalRow(_CALL, _PERMANENT, 409, _INVALID, "It was requeued before, with other changes. Look at the message that took its place."),
    Refusal.REQUEUE_OF_INFLIGHT: RefusalRow(_CALL, _TEMPORARY, 409, _INVALID, "It is being sent at this moment. Wait for the relay's answer, then look again."),
    Refusal.REQUEUE_UNCONFIRMED: RefusalRow(_CALL, _TEMPORARY, 503, _ERROR, "The relay cannot say whether it has this message. Try later; with --force it may arrive twice."),
    Refusal.REQUEUE_OF_RECEIPTED: RefusalRow(_CALL, _PERMANENT, 409, _INVALID, "Those whom the detail names have it, and would get it twice. --force sends it all the same."),
    Refusal.REQUEUE_OF_OTHER: RefusalRow(_CALL, _PERMANENT, 409, _INVALID, "Only a message can be requeued. Give a mesh command again; receipts need nothing from you."),
    Refusal.CANCEL_TOO_LATE: RefusalRow(_CALL, _PERMANENT, 409, _INVALID, "It is due, and may be at the relay already. Only what still waits for its time can be cancelled."),
    Refusal.SEQUENCE_TAKEN: RefusalRow(_CALL, _PERMANENT, 409, _INVALID, "Another object has that sequence. Let the log choose the next one."),
    Refusal.TOO_MANY_OLD_KEYS: RefusalRow(_CALL, _TEMPORARY, 429, _ERROR, "Old keys are kept while messages sealed to them may come. Rotate again when one has expired."),
    Refusal.AUTHOR_MISSING: RefusalRow(_CALL, _PERMANENT, 404, _INVALID, "This home has no author key. Make one with feed init, or take a shared one: feed init --from."),
    Refusal.AUTHOR_PRESENT: RefusalRow(_CALL, _PERMANENT, 409, _INVALID, "This home already keeps the documents of an author. Use another home for another author."),
    Refusal.DOCUMENT_CONFLICTED: RefusalRow(_CALL, _PERMANENT, 409, _INVALID, "Two edits were made without knowing of each other. Look at both, then resolve the document."),
    Refusal.DOCUMENT_NOT_CONFLICTED: RefusalRow(_CALL, _PERMANENT, 409, _INVALID, "This document has no conflict to resolve. Edit it as usual."),
    Refusal.DOCUMENT_CHANGED: RefusalRow(_CALL, _PERMANENT, 409, _INVALID, "The document changed since you read it. Read it again, then decide."),
    Refusal.DOCUMENT_FULL: RefusalRow(_CALL, _PERMANENT, 409, _INVALID, "Its clock is full. Edit it in a home that the clock names, or keep its text under another name."),

    Refusal.HOOK_INVALID_JSON: RefusalRow(_HOOK, _PERMANENT, 400, _INVALID, "The agent's payload is not JSON. Run holdfast doctor; the agent may have changed its format."),
    Refusal.HOOK_PAYLOAD_NOT_OBJECT: RefusalRow(_HOOK, _PERMANENT, 400, _INVALID, "The agent's payload is not a JSON object. Run holdfast doctor."),
    Refusal.HOOK_PAYLOAD_TOO_LARGE: RefusalRow(_HOOK, _PERMANENT, 413, _INVALID, "The agent's payload is too large. Nothing to do: only its beginning is kept."),
    Refusal.HOOK_EVENT_UNKNOWN: RefusalRow(_HOOK, _PERMANENT, 422, _UNSUPPORTED, "This event is not on the allow-list. If it matters, allow it in the settings."),
    Refusal.HOOK_AGENT_UNKNOWN: RefusalRow(_HOOK, _PERMANENT, 400, _UNSUPPORTED, "Name one of the agents that the detail lists."),
    Refusal.SESSION_QUEUE_FULL: RefusalRow(_HOOK, _TEMPORARY, 429, _RATE_LIMITED, "Nothing to do: the session has too much waiting, and the event is fetched again in a second."),

    Refusal.BINARY_FRAME: RefusalRow(_CONNECTION, _PERMANENT, 415, _UNSUPPORTED, "Send JSON in text frames, not binary ones.", 1003),
    Refusal.FRAME_TOO_LARGE: RefusalRow(_CONNECTION, _PERMANENT, 413, _INVALID, "The frame is too large. Split it; the relay's information document states the limits.", 1009),
    Refusal.SLOW_READER: RefusalRow(_CONNECTION, _TEMPORARY, 408, _ERROR, "This client did not read for too long. Connect again, and read what is sent.", 4006),
    Refusal.SLOW_WRITER: RefusalRow(_CONNECTION, _TEMPORARY, 408, _ERROR, "This client began a message and did not finish it in time. Connect again, and send it whole.", 4007),
    Refusal.SHUTTING_DOWN: RefusalRow(_CONNECTION, _TEMPORARY, 503, _ERROR, "The relay is restarting. Connect again in a moment.", 1012),
    Refusal.TOO_MANY_CONNECTIONS: RefusalRow(_CONNECTION, _TEMPORARY, 503, _RATE_LIMITED, "The relay takes no more connections now. Connect again later.", 1013),
    Refusal.REPLACED_BY_NEWER_CONNECTION: RefusalRow(_CONNECTION, _PERMANENT, 409, _RESTRICTED, "This member connected from elsewhere. Find the other home: two must not share one key.", 4003),
    Refusal.MEMBER_ALREADY_CONNECTED: RefusalRow(_CONNECTION, _TEMPORARY, 409, _RESTRICTED, "This member is connected from elsewhere. Stop the other one first.", 4004),
    Refusal.MEMBER_REVOKED: RefusalRow(_CONNECTION, _PERMANENT, 403, _BLOCKED, "This member was revoked. Ask an admin; what was accepted before stays.", 4005),
    Refusal.FEATURE_UNAVAILABLE: RefusalRow(_CONNECTION, _PERMANENT, 501, _UNSUPPORTED, "The other side lacks a feature that this one needs. Upgrade the other side.", 4010),
    Refusal.FEATURE_PARAM_INVALID: RefusalRow(_CONNECTION, _PERMANENT, 400, _INVALID, "The other side offers a feature with an invalid value. Correct its settings.", 4011),
    Refusal.FEATURE_PARAM_BELOW_FLOOR: RefusalRow(_CONNECTION, _PERMANENT, 400, _INVALID, "The other side offers less than is safe. Raise its setting to the minimum in the detail.", 4012),

    Refusal.OUTBOX_MAX_AGE_ABOVE_DEDUPE_WINDOW: RefusalRow(_START, _PERMANENT, 500, _INVALID, "Lower max_age_hours_override here, or raise dedupe_retention_days at the relay."),
    Refusal.KEY_SUPERSEDED: RefusalRow(_START, _PERMANENT, 500, _RESTRICTED, "Use the home that rotated the key, restore a later backup, or ask an admin to let a new home in."),
    Refusal.HOST_CHANGED: RefusalRow(_START, _PERMANENT, 500, _RESTRICTED, "If the home moved here: holdfast daemon accept-host. If it is a copy: holdfast daemon remint."),
    Refusal.PERSISTENT_IN_CI: RefusalRow(_START, _PERMANENT, 500, _RESTRICTED, "A CI machine is gone tomorrow. Use `daemon run --ephemeral`, or --persistent if this one stays."),
}, Refusal)
# fmt: on

_REFUSAL_OF = {refusal.value: refusal for refusal in Refusal}


def problem(refusal: Refusal, detail: str = "", **members: object) -> dict[str, object]:
    """The refusal as an RFC 9457 problem document; `members` are added to it."""
    row = REFUSALS[refusal]
    document: dict[str, object] = {
        "type": PROBLEM_TYPE + refusal.value,
        "title": row.sentence,
        "status": row.http_status,
        "code": refusal.value,
        "temporary": not row.is_permanent,
    }
    if detail:
        document["detail"] = detail
    if shadowed := document.keys() & members:
        raise TypeError(f"a problem says these by itself: {', '.join(sorted(shadowed))}")
    return document | members


def ok_message(refusal: Refusal, detail: str = "") -> str:
    """The refusal as the text of a NIP-01 OK, CLOSED or NOTICE, or of a feed's ERR: prefix, code, detail."""
    row = REFUSALS[refusal]
    return f"{row.prefix}: {refusal}: {detail or row.sentence}"


def refusal_in(message: str) -> Refusal | None:
    """The refusal in a text of `ok_message`; None if it is not one of ours, as from another or newer relay."""
    prefix, _, rest = message.partition(": ")
    refusal = _REFUSAL_OF.get(rest.partition(": ")[0])
    return refusal if refusal and REFUSALS[refusal].prefix == prefix else None
