-- What relays on one database know of each other through it. A relay that has its database to itself leaves these empty.

-- One row: whose database this is. All relays on it are one relay to everybody else, and sign with one key.
CREATE TABLE relay_key (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    pubkey TEXT NOT NULL
) STRICT;

-- Which connection reads a member's queue: the one that took it last. Numbers grow with every taking, in the order of commit.
CREATE TABLE queue_reader (
    mesh   TEXT NOT NULL,
    member TEXT NOT NULL,
    number INTEGER NOT NULL UNIQUE,
    PRIMARY KEY (mesh, member)
) STRICT;

-- Somebody is being handed the state of the feed, which holds back compaction for a while.
CREATE TABLE bootstrap (
    key      TEXT PRIMARY KEY,
    began_at INTEGER NOT NULL
) STRICT;
