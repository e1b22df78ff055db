-- How many operations there are of each status: kept, because the log is long and every page of the outbox asks for it.
-- Triggers keep it, so that no statement which changes a status has to remember it. The append, which is in one place only,
-- counts by itself: a trigger there makes SQLite keep a journal of the statement, which costs a third more.
CREATE TABLE operation_count (
    status TEXT PRIMARY KEY,
    rows   INTEGER NOT NULL CHECK (rows >= 0)
) STRICT;

INSERT INTO operation_count (status, rows)
SELECT status, (SELECT count(*) FROM operation_log WHERE operation_log.status = known.status)
FROM (SELECT 'pending' AS status UNION ALL SELECT 'inflight' UNION ALL SELECT 'done' UNION ALL SELECT 'dead'
      UNION ALL SELECT 'aborted') AS known;

CREATE TRIGGER operation_log_counts_gone AFTER DELETE ON operation_log BEGIN
    UPDATE operation_count SET rows = rows - 1 WHERE status = OLD.status;
END;

CREATE TRIGGER operation_log_counts_moved AFTER UPDATE OF status ON operation_log WHEN OLD.status <> NEW.status BEGIN
    UPDATE operation_count SET rows = rows - 1 WHERE status = OLD.status;
    UPDATE operation_count SET rows = rows + 1 WHERE status = NEW.status;
END;

-- A scheduled send may be cancelled as long as it has no sequence; then its content goes, and its id stays its own for ever.
CREATE TABLE scheduled_send_with_cancel (
    client_message_id   TEXT PRIMARY KEY,
    request_fingerprint BLOB NOT NULL CHECK (length(request_fingerprint) = 32),
    request             BLOB NOT NULL,
    destination_kind    TEXT NOT NULL,
    destination_ref     TEXT NOT NULL,
    object_id           BLOB NOT NULL CHECK (length(object_id) = 32),
    meta                BLOB,
    body                BLOB,
    priority            TEXT NOT NULL CHECK (priority IN ('now', 'next', 'low')),
    reply_to            TEXT,
    mentions            TEXT NOT NULL,
    expires_at          INTEGER,
    accepted_at         INTEGER NOT NULL,
    not_before          INTEGER NOT NULL,
    released_at         INTEGER,
    sequence            INTEGER,
    cancelled_at        INTEGER,
    CHECK ((released_at IS NULL) = (sequence IS NULL)),
    CHECK (released_at IS NULL OR cancelled_at IS NULL),
    CHECK ((body IS NULL) = (released_at IS NOT NULL OR cancelled_at IS NOT NULL))
) STRICT;

INSERT INTO scheduled_send_with_cancel
    (client_message_id, request_fingerprint, request, destination_kind, destination_ref, object_id, meta, body, priority,
     reply_to, mentions, expires_at, accepted_at, not_before, released_at, sequence)
SELECT client_message_id, request_fingerprint, request, destination_kind, destination_ref, object_id, meta, body, priority,
       reply_to, mentions, expires_at, accepted_at, not_before, released_at, sequence
FROM scheduled_send;

DROP TABLE scheduled_send;
ALTER TABLE scheduled_send_with_cancel RENAME TO scheduled_send;

CREATE INDEX scheduled_send_waiting ON scheduled_send (not_before, accepted_at, client_message_id)
    WHERE released_at IS NULL AND cancelled_at IS NULL;

-- Counts unapplied and parked messages from the index alone, because every look at the daemon asks for their numbers.
CREATE INDEX inbox_undone ON inbox (applied_at, parked_at) WHERE applied_at IS NULL;
