-- An accepted snapshot. `superseded_seq` is the first accepted snapshot that dominates it, or its own position if it came
-- dominated; so what was current at any position is known for ever. `event` goes when it is compacted; the rest stays.
CREATE TABLE snapshot (
    seq            INTEGER PRIMARY KEY,
    event_id       BLOB NOT NULL UNIQUE,
    author         TEXT NOT NULL,
    kind           INTEGER NOT NULL,
    d              TEXT NOT NULL,
    o              TEXT NOT NULL CHECK (o IN ('put', 'del')),
    c              TEXT,
    clock          TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    accepted_at    INTEGER NOT NULL,
    superseded_seq INTEGER,
    compact_at     INTEGER,
    event          BLOB,
    size           INTEGER NOT NULL,
    CHECK (superseded_seq IS NULL OR superseded_seq >= seq),
    CHECK (event IS NOT NULL OR superseded_seq IS NOT NULL),
    CHECK (compact_at IS NULL OR superseded_seq IS NOT NULL)
) STRICT;

-- The feed of an author, in the order of the history.
CREATE INDEX snapshot_feed ON snapshot (author, seq);

-- The state of an author's documents, in the order in which it is handed over: what is current, and what was so a while ago.
CREATE INDEX snapshot_state ON snapshot (author, created_at, event_id) WHERE superseded_seq IS NULL;
CREATE INDEX snapshot_superseded ON snapshot (author, superseded_seq, created_at, event_id)
WHERE superseded_seq IS NOT NULL;

-- What an author has here that can be fetched, by its date.
CREATE INDEX snapshot_kept ON snapshot (author, created_at, event_id) WHERE event IS NOT NULL;

-- A document: what is current in it, and what was superseded and is still kept.
CREATE INDEX snapshot_document ON snapshot (author, d, seq);
CREATE INDEX snapshot_current ON snapshot (author, d) WHERE superseded_seq IS NULL;
CREATE INDEX snapshot_recent ON snapshot (author, d, created_at, event_id)
WHERE superseded_seq IS NOT NULL AND event IS NOT NULL AND compact_at IS NULL;

CREATE INDEX snapshot_compaction ON snapshot (compact_at) WHERE event IS NOT NULL AND compact_at IS NOT NULL;
CREATE INDEX snapshot_retained ON snapshot (created_at) WHERE event IS NOT NULL;

-- A document that somebody made. `puts` of the current snapshots are no deletions; without one the document is deleted since
-- `changed_seq`. When its rows were pruned, up to `pruned_seq`, `pruned` still tells what was current and what that knew, so
-- that nothing old comes back.
CREATE TABLE document (
    author      TEXT NOT NULL,
    d           TEXT NOT NULL,
    currents    INTEGER NOT NULL CHECK (currents >= 0),
    puts        INTEGER NOT NULL CHECK (puts >= 0),
    changed_seq INTEGER NOT NULL,
    pruned      TEXT,
    pruned_seq  INTEGER,
    PRIMARY KEY (author, d),
    CHECK ((pruned IS NULL) = (pruned_seq IS NULL))
) STRICT;

CREATE INDEX document_deleted ON document (author, changed_seq) WHERE puts = 0 AND currents > 0;
CREATE INDEX document_pruned ON document (author, pruned_seq) WHERE pruned_seq IS NOT NULL;

-- Whether anybody vouches for an author, in whichever mesh.
CREATE INDEX author_admitted ON author (author);

-- One row: the position from which on the feed can be replayed without a gap.
CREATE TABLE feed (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    min_seq INTEGER NOT NULL
) STRICT;

INSERT INTO feed (id, min_seq) VALUES (1, 1);
