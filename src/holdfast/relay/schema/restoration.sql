-- The `restored` entries that were pruned from the history. Every device must be told of them when it connects, however long
-- it was away: one that missed a restoration would never offer again what the relay lost by it.
CREATE TABLE restoration (
    seq    INTEGER PRIMARY KEY,
    detail BLOB NOT NULL
) STRICT;
