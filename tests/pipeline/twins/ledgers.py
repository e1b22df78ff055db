"""What members used, how sends were tried, and who decided what: once more, by counting one after the other."""

import json
from collections import defaultdict
from typing import Any

from holdfast.protocol.history import Kind
from tests.pipeline.tables.memory_lake import as_time
from tests.pipeline.twins.twins import Rows, Senders, Story

COUNTS = ("sent", "sent_bytes", "recipients", "receipts", "received", "missed")
_MISSES = (Kind.EXPIRED, Kind.DROPPED, Kind.QUARANTINED, Kind.MODERATED)
_MICROSECOND = as_time(1) - as_time(0)


def usage(story: Story) -> Rows:
    found: dict[tuple[Any, ...], dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
    for origin, _, entry in story.of("relay:"):
        minute = as_time(entry.at - entry.at % 60_000_000)
        mine = found[origin, entry.mesh, entry.sender, minute] if entry.kind in (Kind.ACCEPTED, Kind.RECEIPT) else {}
        if entry.kind is Kind.ACCEPTED:
            mine["sent"] += 1
            mine["sent_bytes"] += entry.size or 0
            mine["recipients"] += len(entry.recipients)
        elif entry.kind is Kind.RECEIPT:
            mine["receipts"] += 1
        elif entry.recipient is not None and entry.kind in (Kind.DELIVERED, *_MISSES):
            theirs = found[origin, entry.mesh, entry.recipient, minute]
            theirs["received" if entry.kind is Kind.DELIVERED else "missed"] += 1
    names = ("origin", "mesh", "member", "minute")
    return [{**dict(zip(names, key, strict=True)), "day": key[3].date(), **counts} for key, counts in found.items()]


def retry_profile(senders: Senders) -> Rows:
    found: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    names = ("origin", "destination_kind", "status", "last_reason", "attempts")
    for row in senders.closed:
        if not row["is_late"] and row["status"] != "rolled_back":
            counts = found[(row["closed_at"].date(), *(row[name] for name in names))]
            counts[0] += 1
            counts[1] += (row["closed_at"] - row["enqueued_at"]) // _MICROSECOND
    return [
        {**dict(zip(("day", *names), key, strict=True)), "sends": sends, "waited_us": waited}
        for key, (sends, waited) in found.items()
    ]


def audit_log(story: Story) -> Rows:
    rows = []
    for origin, log_id, entry in story.told:
        said: tuple[Any, ...] | None = None
        if entry.kind is Kind.ADMIN and entry.destination_kind == "consumer":
            said = (None, "register_consumer", entry.destination_ref, None)
        elif entry.kind is Kind.ADMIN:
            asked = json.loads(entry.detail)
            subject = next(asked[name] for name in ("member", "topic", "author", "invite", "name") if name in asked)
            said = (entry.sender, asked["action"], subject, entry.detail.decode())
        elif entry.kind is Kind.MODERATED and entry.recipient is None:
            said = (entry.destination_ref, "moderate", entry.message_id, entry.reason)
        elif entry.kind is Kind.RESTORED or (entry.kind is Kind.PRUNED and entry.message_id is entry.recipient is None):
            said = (None, str(entry.kind), None, entry.reason)
        elif entry.kind is Kind.ABORTED:
            said = (origin.rpartition("/")[2], "requeue", entry.client_message_id, entry.detail.decode())
        if said is not None:
            names = ("actor", "action", "subject", "detail")
            place = {"origin": origin, "log_id": log_id, "seq": entry.seq, "mesh": entry.mesh}
            at = as_time(entry.at)
            rows.append({**place, "at": at, "day": at.date(), **dict(zip(names, said, strict=True))})
    return rows
