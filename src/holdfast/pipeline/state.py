"""The exported state of relays and devices: their own tables, which are compared with their histories.

The state is read after the batch's entries, and after the state the entries that were written meanwhile: these tell what has changed
while the state was read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.pipeline.plan import DEVICE, RELAY, Source
from holdfast.pipeline.table import STATE, Range, Table
from holdfast.pipeline.taking import Piece

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BUCKET = 10_000
"""How many positions are compared together if one of them was touched."""

TABLES = {
    "dedupe": "mesh string, sender string, client_message_id string, event_id binary, message_id string, seq long, "
    "destination_kind string, destination_ref string, history_available boolean",
    "message": "message_id string, mesh string, sender string, client_message_id string, event_id binary, seq long, "
    "destination_kind string, destination_ref string, size long",
    "delivery": "mesh string, member string, seq long, message_id string, state string, was_stored boolean",
    "mention": "mesh string, member string, seq long, message_id string",
    "snapshot": "seq long, event_id binary, author string, kind long, d string, o string, c string, clock string, "
    "created_at long, superseded_seq long, size long",
}
"""The tables of a relay, with those columns that are compared; a test looks for them in what a relay exports."""

DEVICE_TABLES = {
    "operation": "seq long, sequence long, client_message_id string, status string",
    "inbox": "seq long, received_at timestamp, sender string, sender_name string, mesh string, topic string, "
    "client_message_id string, broker_message_id string, body binary",
    "sent": "seq long, enqueued_at timestamp, destination_kind string, destination_ref string, client_message_id string, "
    "broker_message_id string, blob binary",
}
"""The devices' tables, with those columns that are compared, or copied into an owner's lake."""

_EXPORTED_AS = {"sent": "operation"}
"""Our own names for exported tables that are read a second time, with other columns."""

RANGE = "origin string, after long, until long"


def wanted(tables: Sequence[Table]) -> list[str]:
    """The exported tables that some table names as an input."""
    named = {name for table in tables for name in table.inputs if name.startswith(STATE)} - {"state_range"}
    return sorted(name.removeprefix(STATE) for name in named)


def ranges(whole: Sequence[Range], closed: Sequence[tuple[str, int]], *, full: bool) -> list[Range]:
    """The positions of the state to read: all, or those of the batch's entries and the buckets of what it closed."""
    found = []
    for one in whole:
        if one.until == 0:
            continue
        if full:
            found.append(Range(one.origin, one.log_id, 0, one.until, None))
            continue
        if one.after < one.until:
            found.append(one)
        buckets = sorted({(seq - 1) // BUCKET for origin, seq in closed if origin == one.origin and seq <= one.after})
        for bucket in buckets:
            until = min((bucket + 1) * BUCKET, one.after)
            found.append(Range(one.origin, one.log_id, bucket * BUCKET, until, None))
    return found


@dataclass(frozen=True)
class Part:
    """What is read of one source, as options of the Spark data source."""

    source: Source
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Reading:
    """How to read one exported table of several sources."""

    table: str
    schema: "StructType"  # with the origin of a row, and the log it is of
    parts: Sequence[Part]

    def pieces(self) -> list[Piece]:
        """The pieces to read, which may be read at the same time; the sources are asked for their heads, and may refuse."""
        from holdfast.pipeline.source import HoldfastReader, Settings

        found: list[Piece] = []
        for part in self.parts:
            settings = Settings(self._options(part))
            what = (part.source.origin, settings.place, self.table, settings.columns, settings.gaps)
            ranges = HoldfastReader(settings, self.schema).partitions()
            found += (Piece(*what, one.after, one.until, one.log_id) for one in ranges)
        return found

    def _options(self, part: Part) -> dict[str, str]:
        place = part.source.place
        named = {"url": place.url, "table": self.table, "patience_s": place.patience_s, **part.options}
        if place.token_file is not None:
            named["token_file"] = place.token_file
        return {name: str(value) for name, value in named.items()}


def reading(name: str, sources: Sequence[Source], looked_at: Sequence[Range]) -> Reading:
    """How to read these ranges of an exported table; each row gets its origin and its log id."""
    from pyspark.sql.types import StructType

    prefix, declared = (DEVICE, DEVICE_TABLES[name]) if name in DEVICE_TABLES else (RELAY, TABLES[name])
    columns = ",".join(field.strip().split(" ")[0] for field in declared.split(","))
    ours = [one for one in looked_at if one.origin.startswith(prefix)]
    parts = []
    for source in sources:
        ranges = ",".join(f"{one.after}-{one.until}" for one in ours if one.origin == source.origin)
        if ranges:
            parts.append(Part(source, {"columns": columns, "log_id": source.head.log_id.hex(), "ranges": ranges}))
    schema = StructType.fromDDL(f"origin string, log_id binary, {declared}")
    if not isinstance(schema, StructType):
        raise TypeError(f"{declared} are no columns")
    return Reading(_EXPORTED_AS.get(name, name), schema, parts)
