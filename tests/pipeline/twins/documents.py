"""Documents once more, slowly and plainly: every snapshot beside every other of its document."""

import json
from collections import defaultdict

from holdfast.protocol.clock import VectorClock, dominates
from holdfast.protocol.history import Entry, Kind
from tests.pipeline.tables.memory_lake import as_time
from tests.pipeline.twins.twins import Rows, Story


def current_snapshot(story: Story) -> Rows:
    pruned = _pruned(story)
    rows = []
    for (origin, author, d), entries in _documents(story).items():
        for entry in entries:
            said = json.loads(entry.detail)
            if _is_current(entry, entries):
                rows.append(
                    {
                        "origin": origin,
                        "author": author,
                        "d": d,
                        "seq": entry.seq,
                        "event_id": entry.event_id,
                        **{name: said[name] for name in ("kind", "o", "c", "created_at")},
                        "clock": [{"device": device, "counter": counter} for device, counter in said["vc"]],
                        "accepted_at": as_time(entry.at),
                        "size": entry.size,
                        "is_pruned": entry.seq <= pruned[origin, author, d],
                    }
                )
    return rows


def conflict(story: Story) -> Rows:
    sides: dict[tuple[str, str, str], Rows] = defaultdict(list)
    for row in current_snapshot(story):
        if not row["is_pruned"]:
            sides[row["origin"], row["author"], row["d"]].append(row)
    return [
        {
            "origin": origin,
            "author": author,
            "d": d,
            "count": len(rows),
            "latest_at": max(row["accepted_at"] for row in rows),
            "sides": [{name: row[name] for name in ("seq", "event_id", "o")} for row in rows],
        }
        for (origin, author, d), rows in sides.items()
        if len(rows) > 1
    ]


def _documents(story: Story) -> dict[tuple[str, str, str], list[Entry]]:
    found: dict[tuple[str, str, str], list[Entry]] = defaultdict(list)
    for origin, _, entry in story.alive("relay:"):
        if entry.kind is Kind.SNAPSHOT:
            said = json.loads(entry.detail)
            found[origin, said["author"], said["d"]].append(entry)
    return found


def _pruned(story: Story) -> dict[tuple[str, str, str], int]:
    found: dict[tuple[str, str, str], int] = defaultdict(int)
    for origin, _, entry in story.alive("relay:"):
        if entry.kind is Kind.COMPACTED and entry.reason == "deleted":
            found[origin, entry.destination_ref or "", entry.detail[8:].decode()] = int.from_bytes(entry.detail[:8])
    return found


def _is_current(entry: Entry, entries: list[Entry]) -> bool:
    own = _clock(entry)
    return not any(
        dominates(_clock(other), own) or (_clock(other) == own and other.seq > entry.seq) for other in entries
    )


def _clock(entry: Entry) -> VectorClock:
    return VectorClock(tuple((device, counter) for device, counter in json.loads(entry.detail)["vc"]))
