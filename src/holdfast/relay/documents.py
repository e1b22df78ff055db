"""The documents that the relay takes and gives over HTTP, for those who write clients: /openapi.json is made of them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.protocol.action import Identifier, Key, KeyId, LogId, Position, Role, SealedKey, TopicName
from holdfast.protocol.anchor import Anchor
from holdfast.protocol.event import Event


class Accepted(msgspec.Struct, kw_only=True):
    """A yes: 201 the first time, 200 for the same event again, then with the last two fields."""

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
    """To an array of events: one answer each, in order, and `status` in every one of them."""

    answers: list[dict[str, Any]]


class MemberKey(msgspec.Struct):
    """A key that a member has, or had until then."""

    pubkey: Key
    since: int
    until: int | None


class Member(msgspec.Struct):
    """Someone in a mesh, with every key that it ever had."""

    member: Identifier
    pubkey: Key | None
    name: str
    role: Role
    status: str
    keys: list[MemberKey]


class Subscriber(msgspec.Struct):
    """A member that wants what is posted to a topic."""

    member: Identifier
    has_key: bool


class Topic(msgspec.Struct):
    """A topic of a mesh."""

    topic: TopicName
    key_epoch: int
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
    """The reader's own grants."""

    topic: TopicName
    key_epoch: int
    grants: list[Grant]


class Fate(msgspec.Struct):
    """What became of a message for one recipient."""

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
    """Everything up to `through_seq`; there may be more behind it."""

    log_id: LogId
    through_seq: int
    fates: list[Fate]


class Send(msgspec.Struct):
    """Whether an id was consumed; the rest is known if it was."""

    committed: bool
    event_id: str | None = None
    broker_message_id: str | None = None
    history_id: int | None = None
    first_seen_at: int | None = None


class Moderation(msgspec.Struct, forbid_unknown_fields=True):
    """Why a message is taken down."""

    # No NUL: PostgreSQL cannot store it in a text.
    reason: Annotated[str, Meta(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]


class Moderated(msgspec.Struct):
    """How many deliveries were closed by it, and where the history tells of the decision."""

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
    """It lives, or it is ready."""

    ok: bool


class Limitation(msgspec.Struct, kw_only=True):
    """What the relay takes at most (NIP-11's names first)."""

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
    request_timeout_s: float
    idle_timeout_s: float


class Dedupe(msgspec.Struct):
    """For how long a repeated id is recognised; no days: for ever."""

    mode: str
    days: int | None


class Queue(msgspec.Struct):
    """What waits for a member, for how long and how much of it."""

    ttl_days: int
    messages_max: int
    window_messages: int
    second_connection: str


class Features(msgspec.Struct):
    """What devices go by."""

    dedupe: Dedupe
    queue: Queue


class ChangesFeed(msgspec.Struct):
    """From which position on the feed can be replayed."""

    min_seq: int


class SnapshotRetention(msgspec.Struct):
    """Which payloads are kept, and the date of the oldest one, in seconds."""

    mode: str
    recent_count: int
    min_created_at: int | None


class Retained(msgspec.Struct):
    """What is kept of snapshots."""

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
