-- The keys of topics: made here or granted by somebody. What was sealed with a key stays closed without it, so none is
-- ever removed or replaced; of several for one epoch the one kept last is in use, and all of them can still open.
CREATE TABLE topic_key (
    topic     TEXT NOT NULL,
    key_epoch INTEGER NOT NULL CHECK (key_epoch >= 1),
    key       BLOB NOT NULL CHECK (length(key) = 32),
    source    TEXT NOT NULL CHECK (source IN ('made', 'granted')),
    kept_at   INTEGER NOT NULL,
    PRIMARY KEY (topic, key_epoch, key)
) STRICT;

-- Administration is rare among messages: its last counter and what waits of it are found without reading them.
CREATE INDEX operation_log_admin ON operation_log (sequence) WHERE destination_kind = 'admin';
