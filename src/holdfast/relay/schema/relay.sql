-- A tenancy.
CREATE TABLE mesh (
    mesh       TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

-- Members are for ever: a revoked one keeps its row, so that its id is never given to another.
-- queue_count is how many of its deliveries are open; it is kept, not counted, because every accept asks for it.
CREATE TABLE member (
    mesh        TEXT NOT NULL,
    member      TEXT NOT NULL,
    name        TEXT NOT NULL,
    role        TEXT NOT NULL CHECK (role IN ('admin', 'member')),
    status      TEXT NOT NULL CHECK (status IN ('active', 'revoked')),
    joined_at   INTEGER NOT NULL,
    revoked_at  INTEGER,
    queue_count INTEGER NOT NULL DEFAULT 0 CHECK (queue_count >= 0),
    PRIMARY KEY (mesh, member),
    CHECK ((status = 'revoked') = (revoked_at IS NOT NULL))
) STRICT;

CREATE UNIQUE INDEX member_name ON member (mesh, name) WHERE status = 'active';

-- Every key that a member ever had; the current one has no `until`. A retry signed with an old key is still its member's.
CREATE TABLE member_key (
    mesh   TEXT NOT NULL,
    pubkey TEXT NOT NULL,
    member TEXT NOT NULL,
    since  INTEGER NOT NULL,
    until  INTEGER,
    PRIMARY KEY (mesh, pubkey)
) STRICT;

CREATE UNIQUE INDEX member_current_key ON member_key (mesh, member) WHERE until IS NULL;

CREATE TABLE invite (
    mesh         TEXT NOT NULL,
    key          TEXT NOT NULL,
    role         TEXT NOT NULL,
    expires_at   INTEGER NOT NULL,
    created_by   TEXT NOT NULL,
    used_at      INTEGER,
    used_by      TEXT,
    withdrawn_at INTEGER,
    PRIMARY KEY (mesh, key)
) STRICT;

CREATE TABLE topic (
    mesh       TEXT NOT NULL,
    topic      TEXT NOT NULL,
    key_epoch  INTEGER NOT NULL,
    key_id     TEXT,
    created_by TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (mesh, topic)
) STRICT;

CREATE TABLE subscription (
    mesh   TEXT NOT NULL,
    topic  TEXT NOT NULL,
    member TEXT NOT NULL,
    since  INTEGER NOT NULL,
    PRIMARY KEY (mesh, topic, member)
) STRICT;

CREATE INDEX subscription_of_member ON subscription (mesh, member);

-- A topic's key of one epoch, sealed to one member. State, not mail: fetched when needed, outside every queue.
CREATE TABLE topic_grant (
    mesh       TEXT NOT NULL,
    topic      TEXT NOT NULL,
    key_epoch  INTEGER NOT NULL,
    key_id     TEXT NOT NULL,
    member     TEXT NOT NULL,
    key        TEXT NOT NULL,
    sealed     TEXT NOT NULL,
    granted_by TEXT NOT NULL,
    granted_at INTEGER NOT NULL,
    superseded_at INTEGER,
    PRIMARY KEY (mesh, topic, key_epoch, member)
) STRICT;

CREATE INDEX topic_grant_superseded ON topic_grant (superseded_at) WHERE superseded_at IS NOT NULL;

CREATE TABLE admin_counter (
    mesh    TEXT NOT NULL,
    signer  TEXT NOT NULL,
    counter INTEGER NOT NULL,
    PRIMARY KEY (mesh, signer)
) STRICT;

CREATE TABLE block (
    mesh    TEXT NOT NULL,
    member  TEXT NOT NULL,
    blocked TEXT NOT NULL,
    since   INTEGER NOT NULL,
    PRIMARY KEY (mesh, blocked, member)
) STRICT;

CREATE TABLE author (
    mesh   TEXT NOT NULL,
    author TEXT NOT NULL,
    member TEXT NOT NULL,
    since  INTEGER NOT NULL,
    PRIMARY KEY (mesh, author)
) STRICT;

-- An id is consumed iff it has a row here, and it has one iff its accept committed.
CREATE TABLE dedupe (
    mesh              TEXT NOT NULL,
    sender            TEXT NOT NULL,
    client_message_id TEXT NOT NULL,
    event_id          BLOB NOT NULL,
    message_id        TEXT NOT NULL,
    seq               INTEGER NOT NULL,
    destination_kind  TEXT NOT NULL,
    destination_ref   TEXT NOT NULL,
    first_seen_at     INTEGER NOT NULL,
    expires_at        INTEGER,
    history_available INTEGER NOT NULL DEFAULT 1,
    skipped           TEXT NOT NULL,
    PRIMARY KEY (mesh, sender, client_message_id)
) STRICT;

CREATE INDEX dedupe_by_seq ON dedupe (seq);
CREATE INDEX dedupe_expiry ON dedupe (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE message (
    message_id        TEXT NOT NULL UNIQUE,
    mesh              TEXT NOT NULL,
    sender            TEXT NOT NULL,
    client_message_id TEXT NOT NULL,
    event_id          BLOB NOT NULL,
    seq               INTEGER PRIMARY KEY,
    kind              INTEGER NOT NULL,
    destination_kind  TEXT NOT NULL,
    destination_ref   TEXT NOT NULL,
    event             BLOB NOT NULL,
    size              INTEGER NOT NULL,
    accepted_at       INTEGER NOT NULL,
    expires_at        INTEGER
) STRICT;

CREATE INDEX message_by_time ON message (accepted_at, seq);

-- One row: events dated up to here may be of an id that was forgotten, and are refused for ever.
CREATE TABLE forgotten (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    before INTEGER NOT NULL
) STRICT;

INSERT INTO forgotten (id, before) VALUES (1, 0);

-- One message waiting for one member, then what became of it.
CREATE TABLE delivery (
    mesh       TEXT NOT NULL,
    member     TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('open', 'delivered', 'expired', 'dropped', 'quarantined', 'moderated')),
    expires_at INTEGER NOT NULL,
    closed_at  INTEGER,
    was_stored INTEGER,
    PRIMARY KEY (mesh, member, seq),
    CHECK ((state = 'open') = (closed_at IS NULL))
) STRICT;

CREATE INDEX delivery_by_seq ON delivery (seq);
CREATE INDEX delivery_queue ON delivery (mesh, member, seq) WHERE state = 'open';
CREATE INDEX delivery_expiry ON delivery (expires_at) WHERE state = 'open';

CREATE TABLE mention (
    mesh       TEXT NOT NULL,
    member     TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    PRIMARY KEY (mesh, member, seq)
) STRICT;

CREATE INDEX mention_by_seq ON mention (seq);

-- A reader of the history; nothing after its checkpoint is pruned while it comes regularly.
CREATE TABLE consumer (
    name          TEXT PRIMARY KEY,
    log_id        BLOB NOT NULL,
    seq           INTEGER NOT NULL,
    registered_at INTEGER NOT NULL,
    moved_at      INTEGER NOT NULL
) STRICT;
