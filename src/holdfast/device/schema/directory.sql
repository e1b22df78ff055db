-- The mesh as the relay showed it last, so that a device can address, seal and recognise while it is offline.
CREATE TABLE directory_member (
    member TEXT PRIMARY KEY,
    name   TEXT NOT NULL,
    role   TEXT NOT NULL,
    status TEXT NOT NULL,
    pubkey TEXT
) STRICT;

-- Every key that a member has or had: what it signed with an earlier one is still its word.
CREATE TABLE directory_key (
    pubkey TEXT PRIMARY KEY CHECK (length(pubkey) = 64),
    member TEXT NOT NULL,
    since  INTEGER NOT NULL,
    until  INTEGER
) STRICT;

CREATE TABLE directory_topic (
    topic      TEXT PRIMARY KEY,
    key_epoch  INTEGER NOT NULL CHECK (key_epoch >= 0),
    created_by TEXT NOT NULL
) STRICT;
