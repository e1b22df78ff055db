"""The settings of a relay, each with its unit, range and default; from a TOML file, then the environment."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.protocol.event import EVENT_BYTES_MAX
from holdfast.protocol.schedule import DEDUPE_DAYS_MIN, DedupeMode
from holdfast.store import address
from holdfast.store.settings import SettingsInvalid, SettingsReader
from holdfast.wire.response import RESPONSE_BYTES_MAX

__all__ = ("ENVIRONMENT", "FILE_NAME", "Settings", "SettingsInvalid", "load")

ENVIRONMENT = "HOLDFAST_RELAY_"  # then the name in capitals, with two underscores after a table's name
FILE_NAME = "relay.toml"  # in the data directory, when no other file is named
FRAME_BYTES_MIN = EVENT_BYTES_MAX + 1024  # the largest event and the frame around it

Number = Annotated[int, Meta(ge=1, le=1_000_000)]
Rate = Annotated[float, Meta(gt=0, le=1_000_000)]
Repeats = Annotated[int, Meta(ge=0, le=1_000)]
Batch = Annotated[int, Meta(ge=1, le=100)]
Bytes = Annotated[int, Meta(ge=FRAME_BYTES_MIN, le=2**40)]
Seconds = Annotated[float, Meta(ge=0.1, le=86_400)]
WholeSeconds = Annotated[int, Meta(ge=1, le=86_400)]
Milliseconds = Annotated[int, Meta(ge=0, le=60_000)]
Hours = Annotated[int, Meta(ge=0, le=876_000)]
Days = Annotated[int, Meta(ge=1, le=36_500)]
DedupeDays = Annotated[int, Meta(ge=DEDUPE_DAYS_MIN, le=36_500)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Text = Annotated[str, Meta(min_length=1, max_length=255)]
Url = Annotated[str, Meta(pattern=r"\Ahttps?://[^/?#]+")]
StoreUrl = Annotated[str, Meta(pattern=r"\Apostgres(ql)?://")]


class FeedRetention(StrEnum):
    """Which payloads of a document are kept."""

    CURRENT_ONLY = "current_only"
    NONDOMINATED_PLUS_RECENT_HISTORY = "nondominated_plus_recent_history"
    FULL_RETENTION = "full_retention"


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of a request, a connection, a sender or a recipient."""

    queue_messages_max: Number = 1_000  # undelivered messages that may wait for one member
    messages_per_s: Rate = 100.0  # of one sender, sustained
    messages_burst: Number = 1_000  # of one sender, at once
    free_repeats: Repeats = 5  # how often the same bytes may be repeated without counting, per window
    free_repeats_window_s: WholeSeconds = 60
    events_per_request_max: Batch = 100
    events_in_flight_max: Number = 64  # of one WebSocket; it is not read until some are answered
    request_bytes_max: Bytes = 8_388_608  # of one HTTP body: a hundred of the largest events fit
    frame_bytes_max: Bytes = 131_072  # of one WebSocket message
    bodies_bytes_max: Bytes = 134_217_728  # of all bodies under way; the same again for all WebSocket messages
    connections_max: Number = 1_000
    request_timeout_s: Seconds = 30.0  # from the first byte of a request to its last
    idle_timeout_s: Seconds = 75.0  # without any bytes from the other side
    send_timeout_s: Seconds = 30.0  # for the other side to take what it is sent
    drain_timeout_s: Seconds = 10.0  # for requests under way when the relay is told to stop


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long things are kept."""

    dedupe_mode: DedupeMode = DedupeMode.RETENTION_SCOPED
    dedupe_retention_days: DedupeDays = 365  # how long a repeated id is recognised
    message_retention_days: Days = 30  # a message, from its last closing; after it `history_available` is false
    queue_ttl_days: Days = 7  # an undelivered message
    history_hold_days: Days = 7  # how long a consumer that stays away may hold back pruning
    history_hold_bytes: Bytes = 10_737_418_240  # of the database; when it is larger, no consumer holds back pruning
    history_retention_days: Days | None = None  # entries of the history; None keeps them all
    # Keep what no consumer has acknowledged for ever, however long consumers stay away and however much it is.
    proof_required: bool = False
    sweep_interval_s: WholeSeconds = 300
    sweep_rows_max: Number = 1_000  # rows that one transaction of a sweep takes


class QueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How queues are sent."""

    batch_messages: Number = 50  # messages read and sent at once
    pause_ms: Milliseconds = 10  # between the batches of a backlog
    window_messages: Number = 200  # messages sent to one connection without acknowledgement before sending pauses
    second_connection: Literal["prefer_newest", "prefer_oldest", "allow_concurrent"] = "prefer_newest"
    poll_interval_s: Seconds = 1.0  # between two looks for messages whose wake-up was lost


class FeedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The changes feed: whose snapshots it takes, and how many it keeps."""

    open: bool = False  # takes any author and serves any reader; else members admit authors, who read only their own
    retention: FeedRetention = FeedRetention.NONDOMINATED_PLUS_RECENT_HISTORY
    recent_count: Number = 4  # snapshots kept per document, current ones included
    compact_after_hours: Hours = 24  # how long the payload of a snapshot is kept after it is no longer wanted
    tombstones_max: Number = 100  # deleted documents of one author that keep their snapshots
    conflicts_max: Number = 256  # current snapshots that one document may have
    bootstrap_timeout_s: WholeSeconds = 600  # how long a bootstrap may hold back compaction
    subscriptions_max: Number = 64  # of one connection


# What each takes at most in a mesh's document, as JSON; a test measures it.
_MESH_BYTES, _MEMBER_BYTES, _KEY_BYTES, _TOPIC_BYTES, _SUBSCRIPTION_BYTES = 400, 600, 130, 340, 96


class MeshSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one mesh may have. All but the authors is in one document, which members need to administer anything."""

    members_max: Number = 8_000  # revoked ones included
    replaced_keys_max: Number = 8_000  # of all members
    member_replaced_keys_max: Number = 200  # of one member
    topics_max: Number = 1_000
    member_topics_max: Number = 100  # created by one member
    subscriptions_max: Number = 12_000  # to all topics together
    member_authors_max: Number = 20  # admitted by one member; each has a pace of its own

    @property
    def document_bytes_max(self) -> int:
        """The most bytes that a mesh's document can have within these limits."""
        return (
            _MESH_BYTES
            + self.members_max * _MEMBER_BYTES
            + self.replaced_keys_max * _KEY_BYTES
            + self.topics_max * _TOPIC_BYTES
            + self.subscriptions_max * _SUBSCRIPTION_BYTES
        )


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A relay's settings."""

    host: Text = "127.0.0.1"
    port: Port = 7447  # 0 takes any free one
    name: Text = "holdfast relay"
    public_url: Url | None = None  # the address that clients use, if it is not http://host:port
    # A database of PostgreSQL, which several relays may share; None is the data directory's own file.
    store: StoreUrl | None = None
    operators: tuple[str, ...] = ()  # public keys, hex or npub; the data directory's own operator is always one
    readers: tuple[str, ...] = ()  # public keys that may look at the console but change nothing
    limits: Limits = Limits()
    retention: Retention = Retention()
    queue: QueueSettings = QueueSettings()
    feed: FeedSettings = FeedSettings()
    mesh: MeshSettings = MeshSettings()
    log_level: Literal["debug", "info", "warning", "error"] = "info"


_READER = SettingsReader(Settings, ENVIRONMENT)


def load(file: Path | None, environment: Mapping[str, str]) -> Settings:
    """The settings of a file, if one is given, overridden by those of the environment."""
    found = _READER.load(file, environment)
    limits = found.limits
    if limits.bodies_bytes_max < limits.request_bytes_max:
        raise SettingsInvalid(
            f"limits.bodies_bytes_max is {limits.bodies_bytes_max}, which is less than one request may have: "
            f"raise it to at least limits.request_bytes_max, which is {limits.request_bytes_max}."
        )
    if found.mesh.document_bytes_max > RESPONSE_BYTES_MAX:
        raise SettingsInvalid(
            f"the document of a mesh could have {found.mesh.document_bytes_max} bytes, and clients read no more than "
            f"{RESPONSE_BYTES_MAX}: lower mesh.members_max, mesh.replaced_keys_max, mesh.topics_max or "
            "mesh.subscriptions_max."
        )
    if found.store is not None and address.has_key_password(found.store):
        raise SettingsInvalid(
            "store has an sslpassword, which would be shown to everybody on this machine: write it into a service file "
            "of PostgreSQL (~/.pg_service.conf), and service=NAME in its place."
        )
    return found
