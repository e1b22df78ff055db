"""The features of this relay, as it tells a daemon: versions, and the settings that matter to devices."""

from typing import Any

from holdfast.protocol.action import GRANTS_MAX
from holdfast.protocol.event import EVENT_BYTES_MAX
from holdfast.protocol.features import Feature
from holdfast.protocol.schedule import DedupeMode
from holdfast.protocol.tables import total
from holdfast.relay.settings import Settings


def supported(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every feature with its parameters, by its name on the wire."""
    retention, queue = settings.retention, settings.queue
    is_scoped = retention.dedupe_mode is DedupeMode.RETENTION_SCOPED
    days = {"dedupe_retention_days": retention.dedupe_retention_days} if is_scoped else {}
    found: dict[Feature, dict[str, Any]] = {
        Feature.DEDUPE: {"version": 2, "mode": retention.dedupe_mode.value, **days},
        Feature.QUEUE: {
            "version": 1,
            "ttl_days": retention.queue_ttl_days,
            "window_messages": queue.window_messages,
            "messages_max": settings.limits.queue_messages_max,
        },
        Feature.MAX_PAYLOAD: {"version": 1, "event_bytes": EVENT_BYTES_MAX},
        Feature.SECOND_CONNECTION: {"version": 1, "policy": queue.second_connection},
        Feature.KEY_ROTATION: {"version": 1},
        Feature.KEY_EPOCH: {"version": 1, "grants_max": GRANTS_MAX},
    }
    return {feature.value: parameters for feature, parameters in total(found, Feature).items()}
