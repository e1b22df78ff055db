-- What agents told us, in the order in which it was stored. A session is (agent, session_id), with the agent's own id.
-- Ids are never given twice, so a row that was pruned cannot lend its place to another. The payload stands last: what is
-- asked about many rows is answered without reading it.
CREATE TABLE hook_outbox (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id          TEXT NOT NULL UNIQUE CHECK (length(event_id) = 32),
    agent             TEXT NOT NULL,
    session_id        TEXT NOT NULL,
    event_type        TEXT NOT NULL,
    event_name        TEXT NOT NULL,
    occurrence        TEXT UNIQUE,
    received_at       INTEGER NOT NULL,
    status            TEXT NOT NULL DEFAULT 'pending'
                      CHECK (status IN ('pending', 'locked', 'handling', 'done', 'dead', 'coalesced')),
    attempts          INTEGER NOT NULL DEFAULT 0,
    next_attempt_at   INTEGER NOT NULL,
    last_error        TEXT,
    lock_owner        TEXT,
    lock_token        INTEGER NOT NULL DEFAULT 0,
    locked_at         INTEGER,
    ended_at          INTEGER,
    received_reported INTEGER NOT NULL DEFAULT 0 CHECK (received_reported IN (0, 1)),
    ended_reported    INTEGER NOT NULL DEFAULT 0 CHECK (ended_reported IN (0, 1)),
    payload           TEXT NOT NULL,
    CHECK ((status IN ('locked', 'handling')) = (lock_owner IS NOT NULL)),
    CHECK ((lock_owner IS NULL) = (locked_at IS NULL)),
    CHECK ((status IN ('done', 'dead', 'coalesced')) = (ended_at IS NOT NULL))
) STRICT;

-- What is still to be handled: few rows among many, in order, with all that decides about them; by session further below.
CREATE INDEX hook_outbox_waiting ON hook_outbox (id, agent, session_id, status, next_attempt_at, lock_owner, locked_at)
    WHERE ended_at IS NULL;
CREATE INDEX hook_outbox_locked ON hook_outbox (lock_owner) WHERE lock_owner IS NOT NULL;
CREATE INDEX hook_outbox_unreported ON hook_outbox (id)
    WHERE received_reported = 0 OR (ended_at IS NOT NULL AND ended_reported = 0);
CREATE INDEX hook_outbox_ended ON hook_outbox (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX hook_outbox_dead ON hook_outbox (id) WHERE status = 'dead';
CREATE INDEX hook_outbox_by_session ON hook_outbox (agent, session_id, ended_at, id);

-- What was not stored, counted: an agent with a new event shows here.
CREATE TABLE hook_dropped (
    agent      TEXT NOT NULL,
    event_name TEXT NOT NULL,
    reason     TEXT NOT NULL,
    count      INTEGER NOT NULL,
    first_at   INTEGER NOT NULL,
    last_at    INTEGER NOT NULL,
    PRIMARY KEY (agent, event_name, reason)
) STRICT;
