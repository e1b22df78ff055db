-- How far the spool was taken in: `line` is the digest of the line that ends at `end`, so that a mark is never taken for one of
-- another file; `finished` names the file of which everything is here. Both move with the rows that they are about.
CREATE TABLE hook_spool (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    "end"    INTEGER NOT NULL CHECK ("end" >= 0),
    size     INTEGER NOT NULL CHECK (size BETWEEN 0 AND "end"),
    line     TEXT NOT NULL,
    finished TEXT NOT NULL
) STRICT;

INSERT INTO hook_spool (one, "end", size, line, finished) VALUES (1, 0, 0, '', '');
