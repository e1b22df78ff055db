-- One row: who this device is to others. `backup` marks a copy made by `backup`: whoever opens it as a log takes a new epoch.
CREATE TABLE device (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    epoch  BLOB NOT NULL CHECK (length(epoch) = 16),
    backup INTEGER NOT NULL DEFAULT 0 CHECK (backup IN (0, 1))
) STRICT;

-- Every blob this device sent. Rows are never deleted; a delivered one may lose its blob.
-- The sequence is the key: one counter for all objects, so its greatest value is found at once.
CREATE TABLE operation_log (
    sequence            INTEGER PRIMARY KEY CHECK (sequence >= 0),
    object_id           BLOB NOT NULL CHECK (length(object_id) = 32),
    blob                BLOB,
    digest              BLOB NOT NULL CHECK (length(digest) = 32),
    status              TEXT NOT NULL CHECK (status IN ('pending', 'inflight', 'done', 'dead', 'aborted')),
    enqueued_at         INTEGER NOT NULL,
    attempts            INTEGER NOT NULL DEFAULT 0,
    next_attempt_at     INTEGER NOT NULL,
    last_error          TEXT,
    delivered_at        INTEGER,
    id                  TEXT NOT NULL UNIQUE,
    client_message_id   TEXT NOT NULL UNIQUE,
    request_fingerprint BLOB CHECK (length(request_fingerprint) = 32),
    destination_kind    TEXT,
    destination_ref     TEXT,
    event               BLOB,
    broker_message_id   TEXT,
    history_id          INTEGER,
    aborted_at          INTEGER,
    aborted_by          TEXT,
    superseded_by       TEXT,
    CHECK (blob IS NOT NULL OR status = 'done'),
    CHECK ((status = 'done') = (delivered_at IS NOT NULL))
) STRICT;

CREATE INDEX operation_log_by_object ON operation_log (object_id, sequence);

-- The outbox is a view over the log: what the relay has not confirmed.
CREATE INDEX operation_log_outbox ON operation_log (sequence) WHERE status IN ('pending', 'inflight');
