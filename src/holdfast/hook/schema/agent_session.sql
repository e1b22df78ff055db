-- What is known of each agent session, from its events. The last one is remembered: a handler may get it again. The place up to
-- which the transcript was read moves with the outputs that were found there.
CREATE TABLE agent_session (
    agent           TEXT NOT NULL,
    session_id      TEXT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('idle', 'working', 'waiting', 'ended')),
    cwd             TEXT NOT NULL,
    started_at      INTEGER NOT NULL,
    last_event_at   INTEGER NOT NULL,
    last_event_id   TEXT NOT NULL,
    last_event_type TEXT NOT NULL,
    turns           INTEGER NOT NULL DEFAULT 0,
    prompt          TEXT NOT NULL DEFAULT '',
    message         TEXT NOT NULL DEFAULT '',
    notification    TEXT NOT NULL DEFAULT '',
    error           TEXT NOT NULL DEFAULT '',
    tool            TEXT NOT NULL DEFAULT '',
    transcript_path TEXT NOT NULL DEFAULT '',
    transcript_end  INTEGER NOT NULL DEFAULT 0,
    transcript_size INTEGER NOT NULL DEFAULT 0,
    transcript_line TEXT NOT NULL DEFAULT '',
    ended_at        INTEGER,
    PRIMARY KEY (agent, session_id),
    CHECK ((state = 'ended') = (ended_at IS NOT NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX agent_session_by_time ON agent_session (last_event_at);

-- What agents have told, in order, for adapters to follow: each has a place of its own here.
CREATE TABLE agent_event (
    position   INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    kind       TEXT NOT NULL,
    agent      TEXT NOT NULL,
    session_id TEXT NOT NULL,
    at         INTEGER NOT NULL,
    told_at    INTEGER NOT NULL,
    document   BLOB NOT NULL
) STRICT;

CREATE INDEX agent_event_by_time ON agent_event (told_at);

CREATE TABLE agent_follower (
    name          TEXT PRIMARY KEY,
    position      INTEGER NOT NULL,
    delivered     INTEGER NOT NULL DEFAULT 0,
    given_up      INTEGER NOT NULL DEFAULT 0,
    last_error    TEXT,
    last_error_at INTEGER
) STRICT;
