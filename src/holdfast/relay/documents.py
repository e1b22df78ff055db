"""The documents of the relay's HTTP interface; /openapi.json describes them with these docstrings."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.protocol.action import Identifier, Key, KeyId, LogId, Position, Role, SealedKey, TopicName
from holdfast.protocol.anchor import Anchor
from holdfast.protocol.event import Event


class Accepted(msgspec.Struct, kw_only=True):
    """An accepted event: 201 the first time, 200 for the same event again, then with the last two fields."""

    broker_message_id: str
    client_message_id: str
    history_id: int
    log_id: LogId
    duplicate: bool
    skipped: list[str]
    anchor: Anchor
    history_available: bool | None = None
    first_seen_at: int | None = None


class Answers(msgspec.Struct):
    """The answer to an array of events: one answer for each, in order, each with its `status`."""

    answers: list[dict[str, Any]]


class MemberKey(msgspec.Struct):
    """A key that a member has, or had until the given time."""

    pubkey: Key
    since: int
    until: int | None


class Member(msgspec.Struct):
    """A member of a mesh, with every key that it ever had."""

    member: Identifier
    pubkey: Key | None
    name: str
    role: Role
    status: str
    keys: list[MemberKey]


class Subscriber(msgspec.Struct):
    """A subscriber of a topic."""

    member: Identifier
    has_key: bool


class Topic(msgspec.Struct):
    """A topic of a mesh; `left` names a member who has the current key and should not, if there is one."""

    topic: TopicName
    key_epoch: int
    key_id: KeyId | None  # None until it has its first key
    created_by: str
    subscribers: list[Subscriber]
    left: list[str]


class Mesh(msgspec.Struct):
    """A mesh as its members see it."""

    mesh: Identifier
    name: str
    members: list[Member]
    topics: list[Topic]


class Grant(msgspec.Struct):
    """A topic's key, sealed to the reader's key `key`."""

    key_epoch: int
    key_id: KeyId
    key: Key
    sealed: SealedKey
    granted_by: Key


class Grants(msgspec.Struct):
    """The reader's own grants of a topic's keys."""

    topic: TopicName
    key_epoch: int
    grants: list[Grant]


class Fate(msgspec.Struct):
    """The fate of a message for one recipient."""

    seq: int
    at: int
    kind: str
    client_message_id: str | None
    message_id: str | None
    event_id: str | None
    recipient: str
    was_stored: bool | None
    reason: str | None


class Fates(msgspec.Struct):
    """All fates up to `through_seq`; there may be more after it."""

    log_id: LogId
    through_seq: int
    fates: list[Fate]


class Send(msgspec.Struct):
    """Whether an id was used; the other fields are set if it was."""

    committed: bool
    event_id: str | None = None
    broker_message_id: str | None = None
    history_id: int | None = None
    first_seen_at: int | None = None


class Moderation(msgspec.Struct, forbid_unknown_fields=True):
    """The reason why a message is taken down."""

    # No NUL: PostgreSQL cannot store it in a text.
    reason: Annotated[str, Meta(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]


class Moderated(msgspec.Struct):
    """How many deliveries the moderation closed, and its position in the history."""

    message_id: str
    closed: int
    history_id: int


class Checkpoint(msgspec.Struct, forbid_unknown_fields=True):
    """How far a consumer has read."""

    log_id: LogId
    seq: Position


class Consumer(msgspec.Struct):
    """A registered reader of the history."""

    name: Identifier
    log_id: LogId
    seq: Position
    registered_at: int
    moved_at: int


class Health(msgspec.Struct):
    """The state of the process: alive, or ready for requests."""

    ok: bool


class Limitation(msgspec.Struct, kw_only=True):
    """The relay's limits (those with NIP-11's names first)."""

    max_message_length: int
    max_event_tags: int
    max_content_length: int
    auth_required: bool
    payment_required: bool
    restricted_writes: bool
    max_subscriptions: int
    max_filters: int
    created_at_lower_limit: int | None
    created_at_upper_limit: int
    max_event_length: int
    max_events_per_request: int
    max_request_length: int
    max_connections: int
    messages_per_s: float
    messages_burst: int
    mesh_members_max: int
    mesh_replaced_keys_max: int
    mesh_member_replaced_keys_max: int
    mesh_topics_max: int
    mesh_member_topics_max: int
    mesh_subscriptions_max: int
    mesh_member_authors_max: int
    request_timeout_s: float
    idle_timeout_s: float


class Dedupe(msgspec.Struct):
    """How long a repeated id is recognised; for ever if no days are given."""

    mode: str
    days: int | None


class Queue(msgspec.Struct):
    """The limits of a member's queue: how long messages wait, and how many."""

    ttl_days: int
    messages_max: int
    window_messages: int
    second_connection: str


class Features(msgspec.Struct):
    """The promises of the relay that devices rely on."""

    dedupe: Dedupe
    queue: Queue


class ChangesFeed(msgspec.Struct):
    """The first position from which the feed can be replayed."""

    min_seq: int


class SnapshotRetention(msgspec.Struct):
    """Which payloads of snapshots are kept, and the date of the oldest one, in seconds."""

    mode: str
    recent_count: int
    min_created_at: int | None


class Retained(msgspec.Struct):
    """The retention of snapshots."""

    snapshot_retention: SnapshotRetention


class SnapshotSync(msgspec.Struct):
    """How snapshots are served."""

    changes_feed: bool
    author_scoped: bool
    retention: Retained


class Information(msgspec.Struct, kw_only=True):
    """Who the relay is and what it takes (NIP-11)."""

    name: str
    description: str
    pubkey: Key
    supported_nips: list[int]
    software: str
    version: str
    limitation: Limitation
    log_id: LogId
    features: Features
    changes_feed: ChangesFeed
    snapshot_sync: SnapshotSync


Batch = Annotated[list[Event], Meta(min_length=1, max_length=100)]
Published = Event | Batch
