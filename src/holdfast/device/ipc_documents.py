"""The JSON documents of the daemon's interface: clients read answers with them, and /openapi.json is made from them.

Times are microseconds since 1970, UTC; ids of events, epochs and logs are in hex.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.protocol.action import TopicName
from holdfast.protocol.fingerprint import Priority

IDS_MAX = 1_000  # ids in one request

Ids = Annotated[list[str], Meta(min_length=1, max_length=IDS_MAX)]


TOPIC_SIGN = "@"  # marks the name of a topic where a member could be named as well


class SendAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """202: the send is on disk, `queued` or `inflight`. 200: the relay has it from an earlier request with this id."""

    client_message_id: str
    status: str | None = None
    duplicate: bool = False
    broker_message_id: str | None = None
    history_id: int | None = None


class TopicPost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message to a topic."""

    topic: str
    message: str
    client_message_id: str | None = None
    object_id: str | None = None
    priority: Priority = Priority.NEXT
    meta: dict[str, Any] | None = None
    reply_to: str | None = None
    mentions: tuple[str, ...] = ()
    expires_at: int | None = None
    not_before: int | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message that arrived. It has no content while no key opens it, and after 30 days."""

    arrival: int
    id: str
    client_message_id: str
    broker_message_id: str
    mesh: str
    topic: str | None
    sender: str
    sender_pubkey: str
    sender_name: str
    epoch: str
    sequence: int
    previous_sequence: int | None
    event_id: str
    status: str
    object_id: str | None
    body: str | None
    body_base64: str | None = None  # in place of `body`, if that is not UTF-8
    meta: dict[str, Any] | None
    priority: str
    reply_to: str | None
    mentions: tuple[str, ...]
    expires_at: int | None
    sent_at: int
    received_at: int
    was_stored: bool
    replayed: bool
    opened_at: int | None
    pruned_at: int | None
    applied_at: int | None
    parked_at: int | None
    handler_attempts: int
    last_error: str | None


class InboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in the order of arrival; `next_after` is where the next page begins, if there is one."""

    messages: tuple[Message, ...]
    next_after: int | None


class Acknowledge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages that an application has acted on."""

    ids: Ids


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of messages that are applied now, that were applied before, and that are unknown."""

    applied: tuple[str, ...]
    already: tuple[str, ...]
    unknown: tuple[str, ...]


class Failed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A handler's failed attempt at a message."""

    id: str
    error: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong about a sender: a hole in its sequence, two events with one sequence, or a lost state."""

    kind: str
    sender: str
    sender_name: str
    sequence: int | None
    epoch: str
    event_id: str | None
    at: int


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    """Reports on senders, the newest of each kind first."""

    reports: tuple[Report, ...]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A member of the mesh."""

    member: str
    name: str
    role: str
    status: str
    pubkey: str | None
    is_me: bool


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """The members, as the relay showed them last."""

    mesh: str
    peers: tuple[Peer, ...]


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    """A member who is subscribed to a topic."""

    member: str
    name: str
    has_key: bool


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, and whether this device is subscribed and has its key."""

    topic: str
    key_epoch: int
    created_by: str
    subscribed: bool
    key: str
    subscribers: tuple[Subscriber, ...]


class Topics(msgspec.Struct, frozen=True, kw_only=True):
    """The topics of the mesh."""

    topics: tuple[Topic, ...]


class NamedTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request that names a topic."""

    topic: TopicName


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether this device is subscribed, and whether it has the key."""

    topic: str
    subscribed: bool
    key: str | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verb, and notes for people on what else was done."""

    document: Any
    notes: tuple[str, ...]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the operation log, without its content."""

    sequence: int
    id: str
    client_message_id: str
    destination_kind: str | None
    destination_ref: str | None
    status: str
    priority: str
    reply_to: str | None
    mentions: tuple[str, ...]
    expires_at: int | None
    enqueued_at: int
    attempts: int
    next_attempt_at: int
    last_error: str | None
    delivered_at: int | None
    event_id: str | None
    epoch: str | None
    broker_message_id: str | None
    history_id: int | None
    log_id: str | None
    aborted_at: int | None
    aborted_by: str | None
    superseded_by: str | None
    size: int | None  # of its content, in bytes; null once that was pruned


class OutboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by sequence; `next_after` is where the next page begins, if there is one.

    `counts` has the number of all rows by status, and that of `scheduled` sends, which get a row only when their time comes.
    """

    items: tuple[Item, ...]
    next_after: int | None
    counts: dict[str, int]


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """A row, and the chain of requeues that it belongs to, the oldest row first."""

    item: Item
    chain: tuple[Item, ...]


class Patch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a message that is requeued: other content, another expiry (null for none). Fields not given stay."""

    message: str | msgspec.UnsetType = msgspec.UNSET
    meta: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    expires_at: int | msgspec.UnsetType | None = msgspec.UNSET


class Requeue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Send the content of a row again, as a new row with a new id."""

    id: str
    new_client_message_id: str | None = None
    patch: Patch | None = None
    force: bool = False


class Requeued(msgspec.Struct, frozen=True, kw_only=True):
    """The row that was retired, and its successor."""

    aborted_row_id: str
    new_row_id: str
    new_client_message_id: str
    sequence: int


class Cancel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cancel a scheduled send, by its client_message_id."""

    id: str


class ScheduledSend(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduled send, which may be cancelled."""

    client_message_id: str
    destination_kind: str
    destination_ref: str
    priority: str
    accepted_at: int
    not_before: int
    sequence: int | None = None
    cancelled_at: int | None = None


class ScheduledPage(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduled sends, the next first; `next_after` is where the next page begins, if there is one."""

    scheduled: tuple[ScheduledSend, ...]
    next_after: str | None


class Reloaded(msgspec.Struct, kw_only=True):
    """The names of the settings that changed."""

    changed: list[str]


class TokenRotated(msgspec.Struct, kw_only=True):
    """Until when the old token is still accepted (microseconds); null if the loopback port is not open."""

    old_until: int | None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of the daemon, and the member it belongs to."""

    daemon_version: str
    ipc_version: int
    ipc_features: list[str]  # of this interface
    schema_version: int
    relay_features_negotiated: dict[str, dict[str, Any]] | None  # at the last connection to the relay
    mesh: str
    member: str


class Compatibility(msgspec.Struct, frozen=True, kw_only=True):
    """What this daemon is compatible with: features and versions of relays, and versions of this interface."""

    daemon_version: str
    ipc_versions: list[int]
    required_relay_features: dict[str, int]
    optional_relay_features: dict[str, int]
    schema_version: int


def cursor(log_id: str, seq: int) -> str:
    """A position in the device's history together with its log, so that it means the same entry for ever."""
    return f"{log_id}:{seq}"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the daemon."""

    connected: bool
    since: int  # when the connection was made, or lost
    detail: str  # why it is not connected
    relay: str
    # The last fault of relay or disk since the start, and its time, even if it is over.
    last_error: str | None
    last_error_at: int | None
    pending_count: int  # messages that waited at the relay when the daemon connected last
    pressure: str  # how short room is: normal, high, full (no new sends) or degraded (no new event streams, either)
    pressure_of: str  # the limit that is used up most, and how much of it
    pressure_percent: int
    queue_depth: int  # sends that the relay has not confirmed
    inflight: int  # of these, being sent
    oldest_waiting_at: int | None  # since when the oldest of them waits, for how long, and why
    oldest_waiting_s: int | None
    oldest_waiting_reason: str | None
    scheduled: int  # sends whose time has not come
    dead: int  # messages that were given up; `outbox list` says why
    unapplied: int  # messages that no application has acted on
    parked: int  # messages whose handler kept failing
    mesh: str
    mesh_name: str
    member: str
    member_name: str
    member_pubkey: str
    log_id: str
    seq: int  # where the device's history ends
    epoch: str
    pid: int
    started_at: int
    uptime_s: int
    daemon_version: str
    schema_version: int

    @property
    def cursor(self) -> str:
        """The cursor of the history's end, for an event stream to begin there."""
        return cursor(self.log_id, self.seq)
