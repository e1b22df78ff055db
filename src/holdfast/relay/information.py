"""The relay's documents about itself: NIP-11 with its real limits, and OpenAPI."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from holdfast.protocol.envelope import SEALED_CHARACTERS_MAX
from holdfast.protocol.event import EVENT_BYTES_MAX, TAGS_MAX
from holdfast.protocol.feed_filter import FILTERS_MAX
from holdfast.protocol.schedule import CLOCK_AHEAD_MAX, DAY, SECOND, DedupeMode
from holdfast.relay.documents import (
    ChangesFeed,
    Dedupe,
    Features,
    Information,
    Limitation,
    Queue,
    Retained,
    SnapshotRetention,
    SnapshotSync,
)
from holdfast.relay.security import SECURITY
from holdfast.relay.settings import Settings
from holdfast.wire.openapi import openapi as describe
from holdfast.wire.route import Route

NOSTR_JSON = "application/nostr+json"
SOFTWARE = "holdfast"
VERSION = version(SOFTWARE)
DESCRIPTION = "Keeps messages until their recipients have them, and can prove it. It sees envelopes, never bodies."
SUPPORTED_NIPS = [1, 11, 42, 98]


def information(
    settings: Settings, pubkey: str, log_id: bytes, min_seq: int, min_created_at: int | None
) -> Information:
    """The NIP-11 document."""
    return Information(
        name=settings.name,
        description=DESCRIPTION,
        pubkey=pubkey,
        supported_nips=SUPPORTED_NIPS,
        software=SOFTWARE,
        version=VERSION,
        limitation=_limitation(settings),
        log_id=log_id.hex(),
        features=_features(settings),
        changes_feed=ChangesFeed(min_seq=min_seq),
        snapshot_sync=_snapshot_sync(settings, min_created_at),
    )


def _snapshot_sync(settings: Settings, min_created_at: int | None) -> SnapshotSync:
    kept = SnapshotRetention(settings.feed.retention.value, settings.feed.recent_count, min_created_at)
    return SnapshotSync(changes_feed=True, author_scoped=True, retention=Retained(kept))


def _limitation(settings: Settings) -> Limitation:
    limits, mesh, days = settings.limits, settings.mesh, _dedupe_days(settings)
    return Limitation(
        max_message_length=limits.frame_bytes_max,
        max_event_tags=TAGS_MAX,
        max_content_length=SEALED_CHARACTERS_MAX,
        auth_required=False,
        payment_required=False,
        restricted_writes=True,  # members only
        created_at_lower_limit=None if days is None else days * DAY // SECOND,
        created_at_upper_limit=CLOCK_AHEAD_MAX // SECOND,
        max_subscriptions=settings.feed.subscriptions_max,
        max_filters=FILTERS_MAX,
        max_event_length=EVENT_BYTES_MAX,
        max_events_per_request=limits.events_per_request_max,
        max_request_length=limits.request_bytes_max,
        max_connections=limits.connections_max,
        messages_per_s=limits.messages_per_s,
        messages_burst=limits.messages_burst,
        mesh_members_max=mesh.members_max,
        mesh_replaced_keys_max=mesh.replaced_keys_max,
        mesh_member_replaced_keys_max=mesh.member_replaced_keys_max,
        mesh_topics_max=mesh.topics_max,
        mesh_member_topics_max=mesh.member_topics_max,
        mesh_subscriptions_max=mesh.subscriptions_max,
        mesh_member_authors_max=mesh.member_authors_max,
        request_timeout_s=limits.request_timeout_s,
        idle_timeout_s=limits.idle_timeout_s,
    )


def _features(settings: Settings) -> Features:
    return Features(
        dedupe=Dedupe(mode=settings.retention.dedupe_mode.value, days=_dedupe_days(settings)),
        queue=Queue(
            ttl_days=settings.retention.queue_ttl_days,
            messages_max=settings.limits.queue_messages_max,
            window_messages=settings.queue.window_messages,
            second_connection=settings.queue.second_connection,
        ),
    )


def _dedupe_days(settings: Settings) -> int | None:
    retention = settings.retention
    return None if retention.dedupe_mode is DedupeMode.PERMANENT else retention.dedupe_retention_days


def openapi(routes: Sequence[Route], url: str) -> dict[str, Any]:
    """The OpenAPI description of the relay's routes."""
    return describe(
        routes, title="Holdfast relay", version=VERSION, description=DESCRIPTION, url=url, security=SECURITY
    )
