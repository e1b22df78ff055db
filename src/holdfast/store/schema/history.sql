-- One row: which log this is, where it ends, and where it begins since its oldest entries were pruned.
-- Writers take this row first, so positions are given in the order of commit and leave no holes.
CREATE TABLE history_head (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    log_id       BLOB NOT NULL CHECK (length(log_id) = 16),
    seq          INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    chain        BLOB NOT NULL CHECK (length(chain) = 32),
    anchor_seq   INTEGER NOT NULL,
    anchor_chain BLOB NOT NULL CHECK (length(anchor_chain) = 32)
) STRICT;

CREATE TABLE history (
    seq               INTEGER PRIMARY KEY,
    at                INTEGER NOT NULL,
    kind              TEXT NOT NULL,
    mesh              TEXT,
    message_id        TEXT,
    client_message_id TEXT,
    sender            TEXT,
    epoch             BLOB,
    sequence          INTEGER,
    recipient         TEXT,
    recipients        TEXT NOT NULL,
    mentions          TEXT NOT NULL,
    destination_kind  TEXT,
    destination_ref   TEXT,
    event_id          BLOB,
    size              INTEGER,
    was_stored        INTEGER,
    reason            TEXT,
    detail            BLOB NOT NULL,
    chain             BLOB NOT NULL CHECK (length(chain) = 32)
) STRICT;
