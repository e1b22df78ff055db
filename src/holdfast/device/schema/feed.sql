-- The author whose documents this home keeps: a person's key, made here or shared by another home of the same person.
CREATE TABLE author (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    pubkey     TEXT NOT NULL,
    secret     BLOB NOT NULL CHECK (length(secret) = 32),
    granted_by TEXT,
    kept_at    INTEGER NOT NULL
) STRICT;

-- The relays that keep the documents, and up to where each was followed: `seq` of its log `log_id`. No position means that
-- its state has to be fetched first. `is_home`: the relay of this home's mesh. `pubkey` is what the relay showed first.
CREATE TABLE feed_relay (
    relay    TEXT PRIMARY KEY,
    pubkey   TEXT,
    is_home  INTEGER NOT NULL CHECK (is_home IN (0, 1)),
    log_id   BLOB CHECK (length(log_id) = 16),
    seq      INTEGER CHECK (seq >= 0),
    added_at INTEGER NOT NULL,
    CHECK ((log_id IS NULL) = (seq IS NULL))
) STRICT;

-- The state of a relay while it is being fetched; nothing of it counts before it is whole.
CREATE TABLE staged_snapshot (
    relay    TEXT NOT NULL,
    event_id BLOB NOT NULL CHECK (length(event_id) = 32),
    event    BLOB NOT NULL,
    PRIMARY KEY (relay, event_id)
) STRICT;

-- Snapshots that were current here once. `current`: nothing known dominates it. `superseded`: `superseded_by` does; the last
-- few of each document are kept. `gone`: a relay knows that it is dominated and nobody knows by what, for the deletion is pruned
-- there. `name` is known only of what can be opened.
CREATE TABLE snapshot (
    number        INTEGER PRIMARY KEY,
    event_id      BLOB NOT NULL UNIQUE CHECK (length(event_id) = 32),
    d             TEXT NOT NULL,
    name          TEXT,
    o             TEXT NOT NULL CHECK (o IN ('put', 'del')),
    clock         TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    known_at      INTEGER NOT NULL,
    is_own        INTEGER NOT NULL CHECK (is_own IN (0, 1)),
    status        TEXT NOT NULL CHECK (status IN ('current', 'superseded', 'gone')),
    superseded_by BLOB CHECK (length(superseded_by) = 32),
    event         BLOB NOT NULL,
    CHECK ((status = 'superseded') = (superseded_by IS NOT NULL))
) STRICT;

CREATE INDEX snapshot_document ON snapshot (d, number);
CREATE INDEX snapshot_standing ON snapshot (d) WHERE status <> 'superseded';
CREATE INDEX snapshot_name ON snapshot (name, d) WHERE status = 'current';

-- What is known of a snapshot at a relay. `offered`: its operation waits. `there`: the relay has it. `refused`: for good, until
-- something else comes of the document. `dominated`: the relay knows something newer, which is here as soon as the relay was
-- followed up to `seq`, or never.
CREATE TABLE sighting (
    relay    TEXT NOT NULL,
    event_id BLOB NOT NULL CHECK (length(event_id) = 32),
    state    TEXT NOT NULL CHECK (state IN ('offered', 'there', 'refused', 'dominated')),
    seq      INTEGER,
    PRIMARY KEY (relay, event_id),
    CHECK (state <> 'dominated' OR seq IS NOT NULL)
) STRICT;

CREATE INDEX sighting_event ON sighting (event_id);
CREATE INDEX sighting_dominated ON sighting (relay, seq) WHERE state = 'dominated';
