-- What the envelope of a send will say (its content is in the blob), and what was asked for, as the caller wrote it: a
-- requeue with other content needs that for the new fingerprint.
ALTER TABLE operation_log ADD COLUMN priority TEXT NOT NULL DEFAULT 'next' CHECK (priority IN ('now', 'next', 'low'));
ALTER TABLE operation_log ADD COLUMN reply_to TEXT;
ALTER TABLE operation_log ADD COLUMN mentions TEXT NOT NULL DEFAULT '[]';
ALTER TABLE operation_log ADD COLUMN expires_at INTEGER;
ALTER TABLE operation_log ADD COLUMN request BLOB;

-- The names in the signed event, which stay when the event is pruned or the device takes a new epoch; and the relay's log in
-- which `history_id` is a position.
ALTER TABLE operation_log ADD COLUMN event_id BLOB CHECK (length(event_id) = 32);
ALTER TABLE operation_log ADD COLUMN epoch BLOB CHECK (length(epoch) = 16);
ALTER TABLE operation_log ADD COLUMN log_id BLOB CHECK (length(log_id) = 16);

CREATE INDEX operation_log_by_event ON operation_log (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX operation_log_relayed ON operation_log (log_id, history_id) WHERE status = 'done';
CREATE INDEX operation_log_by_successor ON operation_log (superseded_by) WHERE superseded_by IS NOT NULL;

-- Finds the last send to a destination, which every new one names; sends that were given up do not count.
CREATE INDEX operation_log_by_destination ON operation_log (destination_kind, destination_ref, sequence)
    WHERE status IN ('pending', 'inflight', 'done');

-- Every rung of one message is found without reading the whole history.
CREATE INDEX history_by_client_message_id ON history (client_message_id) WHERE client_message_id IS NOT NULL;

-- Scheduled sends. They get a sequence only when their time comes; the row stays afterwards, without its content.
CREATE TABLE scheduled_send (
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
    CHECK ((released_at IS NULL) = (sequence IS NULL)),
    CHECK ((body IS NULL) = (released_at IS NOT NULL))
) STRICT;

CREATE INDEX scheduled_send_waiting ON scheduled_send (not_before, accepted_at, client_message_id)
    WHERE released_at IS NULL;

-- Every message that came, in the order of arrival. Rows are never deleted, so that no message can come a second time; what
-- they hold of the message goes after the retention.
CREATE TABLE inbox (
    arrival           INTEGER PRIMARY KEY,
    id                TEXT NOT NULL UNIQUE,
    client_message_id TEXT NOT NULL,
    broker_message_id TEXT NOT NULL,
    mesh              TEXT NOT NULL,
    topic             TEXT,
    sender            TEXT NOT NULL,
    sender_pubkey     TEXT NOT NULL,
    sender_name       TEXT NOT NULL,
    epoch             BLOB NOT NULL CHECK (length(epoch) = 16),
    sequence          INTEGER NOT NULL,
    previous_sequence INTEGER,
    event_id          BLOB NOT NULL UNIQUE CHECK (length(event_id) = 32),
    event             BLOB,
    status            TEXT NOT NULL CHECK (status IN ('stored', 'unreadable')),
    object_id         BLOB CHECK (length(object_id) = 32),
    body              BLOB,
    meta              BLOB,
    priority          TEXT NOT NULL,
    reply_to          TEXT,
    mentions          TEXT NOT NULL,
    expires_at        INTEGER,
    sent_at           INTEGER NOT NULL,
    received_at       INTEGER NOT NULL,
    was_stored        INTEGER NOT NULL CHECK (was_stored IN (0, 1)),
    replayed          INTEGER NOT NULL CHECK (replayed IN (0, 1)),
    log_id            BLOB NOT NULL CHECK (length(log_id) = 16),
    history_id        INTEGER NOT NULL,
    receipt_sequence  INTEGER,
    opened_at         INTEGER,
    pruned_at         INTEGER,
    fired_at          INTEGER,
    applied_at        INTEGER,
    parked_at         INTEGER,
    handler_attempts  INTEGER NOT NULL DEFAULT 0,
    last_error        TEXT,
    UNIQUE (sender, client_message_id),
    CHECK (status = 'stored' OR body IS NULL),
    CHECK ((pruned_at IS NULL) = (event IS NOT NULL))
) STRICT;

CREATE INDEX inbox_by_sequence ON inbox (sender, sequence);
CREATE INDEX inbox_unfired ON inbox (arrival) WHERE fired_at IS NULL;
CREATE INDEX inbox_unapplied ON inbox (arrival) WHERE applied_at IS NULL AND parked_at IS NULL;
CREATE INDEX inbox_unreadable ON inbox (arrival) WHERE status = 'unreadable' AND pruned_at IS NULL;
CREATE INDEX inbox_unpruned ON inbox (received_at) WHERE pruned_at IS NULL;
CREATE INDEX inbox_by_client_message_id ON inbox (client_message_id);

CREATE TABLE inbox_mention (
    member  TEXT NOT NULL,
    arrival INTEGER NOT NULL,
    PRIMARY KEY (member, arrival)
) STRICT;

-- Events whose client_message_id another message of the same sender has: not messages, but evidence.
CREATE TABLE inbox_duplicate (
    event_id          BLOB PRIMARY KEY CHECK (length(event_id) = 32),
    event             BLOB,
    client_message_id TEXT NOT NULL,
    broker_message_id TEXT NOT NULL,
    sender            TEXT NOT NULL,
    epoch             BLOB NOT NULL CHECK (length(epoch) = 16),
    sequence          INTEGER NOT NULL,
    received_at       INTEGER NOT NULL,
    receipt_sequence  INTEGER
) STRICT;

CREATE INDEX inbox_duplicate_by_sequence ON inbox_duplicate (sender, sequence);

-- The epochs of each sender, numbered from 0 in the order in which they were met: a second one means that it lost its state.
CREATE TABLE sender_epoch (
    sender TEXT NOT NULL,
    epoch  BLOB NOT NULL CHECK (length(epoch) = 16),
    number INTEGER NOT NULL,
    since  INTEGER NOT NULL,
    PRIMARY KEY (sender, epoch)
) STRICT;

-- Receipts that came, as they were signed: whoever holds one can prove the delivery.
CREATE TABLE receipt (
    event_id    BLOB PRIMARY KEY CHECK (length(event_id) = 32),
    event       BLOB NOT NULL,
    message_id  TEXT NOT NULL,
    sender      TEXT NOT NULL,
    received_at INTEGER NOT NULL
) STRICT;

-- What a recipient's receipt says of a send of ours; the first one counts.
CREATE TABLE send_receipt (
    sequence         INTEGER NOT NULL,
    recipient        TEXT NOT NULL,
    status           TEXT NOT NULL CHECK (status IN ('stored', 'unreadable', 'duplicate')),
    was_stored       INTEGER NOT NULL CHECK (was_stored IN (0, 1)),
    receipt_event_id BLOB NOT NULL CHECK (length(receipt_event_id) = 32),
    received_at      INTEGER NOT NULL,
    PRIMARY KEY (sequence, recipient)
) STRICT;

-- The fates of our sends at each recipient, as the relay tells them. A restored relay may tell several of one send.
CREATE TABLE fate (
    sequence   INTEGER NOT NULL,
    recipient  TEXT NOT NULL,
    kind       TEXT NOT NULL,
    at         INTEGER NOT NULL,
    was_stored INTEGER CHECK (was_stored IN (0, 1)),
    reason     TEXT,
    log_id     BLOB NOT NULL CHECK (length(log_id) = 16),
    history_id INTEGER NOT NULL,
    PRIMARY KEY (sequence, recipient, kind)
) STRICT;

-- Positions up to which something was read from the relay.
CREATE TABLE cursor (
    name     TEXT PRIMARY KEY,
    log_id   BLOB NOT NULL CHECK (length(log_id) = 16),
    seq      INTEGER NOT NULL CHECK (seq >= 0),
    moved_at INTEGER NOT NULL
) STRICT;
