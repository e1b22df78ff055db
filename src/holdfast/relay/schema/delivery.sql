-- Deliveries lie in the order of queues: what one member acknowledges together lies in a few pages, however many others wait.
CREATE TABLE delivery_by_queue (
    mesh         TEXT NOT NULL,
    member       TEXT NOT NULL,
    seq          INTEGER NOT NULL,
    message_id   TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('open', 'delivered', 'expired', 'dropped', 'quarantined', 'moderated')),
    expires_at   INTEGER NOT NULL,
    closed_at    INTEGER,
    was_stored   INTEGER,
    is_receipt   INTEGER NOT NULL DEFAULT 0 CHECK (is_receipt IN (0, 1)),
    receipted_at INTEGER,
    PRIMARY KEY (mesh, member, seq),
    CHECK ((state = 'open') = (closed_at IS NULL))
) STRICT, WITHOUT ROWID;

INSERT INTO delivery_by_queue
    (mesh, member, seq, message_id, state, expires_at, closed_at, was_stored, is_receipt, receipted_at)
SELECT mesh, member, seq, message_id, state, expires_at, closed_at, was_stored, is_receipt, receipted_at
FROM delivery ORDER BY mesh, member, seq;

DROP TABLE delivery;
ALTER TABLE delivery_by_queue RENAME TO delivery;

-- The only one in the order of the history, and therefore without a condition: closing a delivery leaves it as it is.
CREATE INDEX delivery_by_seq ON delivery (seq);

-- What waits, by queue; a queue is short, so whoever looks for what has expired in it, or waits longest, goes along it.
CREATE INDEX delivery_queue ON delivery (mesh, member, seq) WHERE state = 'open';

-- Nothing in the queue expires before this; NULL where nothing waits. The sweep looks into a queue when this has come, and finds
-- out the next such time: an index of times would have an entry for each delivery, in another page than its neighbours'.
ALTER TABLE member ADD COLUMN expires_from INTEGER DEFAULT 0;
