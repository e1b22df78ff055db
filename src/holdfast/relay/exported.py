"""The tables of the relay that are exported. `python -m holdfast.relay.exported PATH` is the process that reads them."""

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types

from holdfast.export import reader
from holdfast.export.selection import BYTES, FLAG, HISTORY, NUMBER, PAYLOAD, TEXT, TEXTS, TIME, Table, always
from holdfast.relay.database import open_to_read

EXPORTED: dict[str, Table] = {
    "history": HISTORY,
    "dedupe": Table(
        pa.schema(
            [
                always("mesh", TEXT),
                always("sender", TEXT),
                always("client_message_id", TEXT),
                always("event_id", BYTES),
                always("message_id", TEXT),
                always("seq", NUMBER),
                always("destination_kind", TEXT),
                always("destination_ref", TEXT),
                always("first_seen_at", TIME),
                pa.field("expires_at", TIME),
                always("history_available", FLAG),
                always("skipped", TEXTS),
            ]
        ),
        source="dedupe",
    ),
    "message": Table(
        pa.schema(
            [
                always("message_id", TEXT),
                always("mesh", TEXT),
                always("sender", TEXT),
                always("client_message_id", TEXT),
                always("event_id", BYTES),
                always("seq", NUMBER),
                always("kind", NUMBER),
                always("destination_kind", TEXT),
                always("destination_ref", TEXT),
                always("event", BYTES, PAYLOAD),
                always("size", NUMBER),
                always("accepted_at", TIME),
                pa.field("expires_at", TIME),
                pa.field("digest", BYTES, metadata=PAYLOAD),
            ]
        ),
        source="message",
    ),
    "delivery": Table(
        pa.schema(
            [
                always("mesh", TEXT),
                always("member", TEXT),
                always("seq", NUMBER),
                always("message_id", TEXT),
                always("state", TEXT),
                always("expires_at", TIME),
                pa.field("closed_at", TIME),
                pa.field("was_stored", FLAG),
                always("is_receipt", FLAG),
                pa.field("receipted_at", TIME),
            ]
        ),
        source="delivery",
    ),
    "snapshot": Table(
        pa.schema(
            [
                always("seq", NUMBER),
                always("event_id", BYTES),
                always("author", TEXT),
                always("kind", NUMBER),
                always("d", TEXT),
                always("o", TEXT),
                pa.field("c", TEXT),
                always("clock", TEXT),
                always("created_at", NUMBER),
                always("accepted_at", TIME),
                pa.field("superseded_seq", NUMBER),
                pa.field("compact_at", TIME),
                pa.field("event", BYTES, metadata=PAYLOAD),
                always("size", NUMBER),
            ]
        ),
        source="snapshot",
    ),
    "mention": Table(
        pa.schema(
            [
                always("mesh", TEXT),
                always("member", TEXT),
                always("seq", NUMBER),
                always("message_id", TEXT),
            ]
        ),
        source="mention",
    ),
}

if __name__ == "__main__":
    reader.main(open_to_read, EXPORTED)
