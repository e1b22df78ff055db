"""The tables of the device that are exported. `python -m holdfast.device.exported PATH` is the process that reads them.

The position of a row is that of the history entry which made it. Columns with sealed content, or content that was to be
sealed, are payloads.
"""

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # the package ships no types

from holdfast.device.database import open_to_read
from holdfast.export import reader
from holdfast.export.selection import BYTES, FLAG, HISTORY, NUMBER, PAYLOAD, TEXT, TEXTS, TIME, Table, always
from holdfast.store.sqlite import SqliteEngine

HOOKS_NAME = "hooks.db"  # beside the device's own database

EXPORTED: dict[str, Table] = {
    "history": HISTORY,
    "operation": Table(
        pa.schema(
            [
                always("seq", NUMBER),
                always("sequence", NUMBER),
                always("object_id", BYTES),
                always("status", TEXT),
                always("enqueued_at", TIME),
                always("attempts", NUMBER),
                always("next_attempt_at", TIME),
                pa.field("last_error", TEXT),
                pa.field("delivered_at", TIME),
                always("id", TEXT),
                always("client_message_id", TEXT),
                pa.field("request_fingerprint", BYTES),
                pa.field("destination_kind", TEXT),
                pa.field("destination_ref", TEXT),
                always("priority", TEXT),
                pa.field("reply_to", TEXT),
                always("mentions", TEXTS),
                pa.field("expires_at", TIME),
                pa.field("event_id", BYTES),
                pa.field("epoch", BYTES),
                pa.field("broker_message_id", TEXT),
                pa.field("log_id", BYTES),
                pa.field("history_id", NUMBER),
                pa.field("aborted_at", TIME),
                pa.field("aborted_by", TEXT),
                pa.field("superseded_by", TEXT),
                pa.field("blob", BYTES, metadata=PAYLOAD),
                pa.field("event", BYTES, metadata=PAYLOAD),
                pa.field("request", BYTES, metadata=PAYLOAD),
            ]
        ),
        source="""(
            SELECT history.seq AS seq, operation_log.*
            FROM history JOIN operation_log ON operation_log.sequence = history.sequence
            WHERE history.kind = 'enqueued'
        )""",
    ),
    "inbox": Table(
        pa.schema(
            [
                always("seq", NUMBER),
                always("arrival", NUMBER),
                always("id", TEXT),
                always("client_message_id", TEXT),
                always("broker_message_id", TEXT),
                always("mesh", TEXT),
                pa.field("topic", TEXT),
                always("sender", TEXT),
                always("sender_pubkey", TEXT),
                always("sender_name", TEXT),
                always("epoch", BYTES),
                always("sequence", NUMBER),
                pa.field("previous_sequence", NUMBER),
                always("event_id", BYTES),
                always("status", TEXT),
                pa.field("object_id", BYTES),
                always("priority", TEXT),
                pa.field("reply_to", TEXT),
                always("mentions", TEXTS),
                pa.field("expires_at", TIME),
                always("sent_at", TIME),
                always("received_at", TIME),
                always("was_stored", FLAG),
                always("replayed", FLAG),
                always("log_id", BYTES),
                always("history_id", NUMBER),
                pa.field("receipt_sequence", NUMBER),
                pa.field("opened_at", TIME),
                pa.field("pruned_at", TIME),
                pa.field("applied_at", TIME),
                pa.field("parked_at", TIME),
                always("handler_attempts", NUMBER),
                pa.field("last_error", TEXT),
                pa.field("body", BYTES, metadata=PAYLOAD),
                pa.field("meta", BYTES, metadata=PAYLOAD),
                pa.field("event", BYTES, metadata=PAYLOAD),
            ]
        ),
        source="""(
            SELECT history.seq AS seq, inbox.*
            FROM history JOIN inbox ON inbox.event_id = history.event_id
            WHERE history.kind = 'stored'
        )""",
    ),
    "hook_outbox": Table(
        pa.schema(
            [
                always("seq", NUMBER),
                always("id", NUMBER),
                always("event_id", TEXT),
                always("agent", TEXT),
                always("session_id", TEXT),
                always("event_type", TEXT),
                always("event_name", TEXT),
                always("received_at", TIME),
                always("status", TEXT),
                always("attempts", NUMBER),
                always("next_attempt_at", TIME),
                pa.field("last_error", TEXT),
                pa.field("lock_owner", TEXT),
                pa.field("locked_at", TIME),
                pa.field("ended_at", TIME),
                always("ended_reported", FLAG),
                pa.field("payload", TEXT, metadata=PAYLOAD),
            ]
        ),
        # A hook event whose history entry is not written yet has no position, and is left out.
        source="""(
            SELECT history.seq AS seq, hook_outbox.*
            FROM history JOIN hooks.hook_outbox AS hook_outbox ON hook_outbox.event_id = lower(hex(history.event_id))
            WHERE history.kind = 'hook_received'
        )""",
    ),
}


def _open(path: str) -> SqliteEngine:
    """Open the device's database with that of agent hooks attached: its rows are positioned by the device's history."""
    open_to_read(path).close()  # refuses a database that is not a device's
    return SqliteEngine(path, read_only=True, beside=(str(Path(path).with_name(HOOKS_NAME)), "hooks"))


if __name__ == "__main__":
    reader.main(_open, EXPORTED)
