-- A receipt on its way to the sender waits like a message, but is outside the count and the cap of a queue.
ALTER TABLE delivery ADD COLUMN is_receipt INTEGER NOT NULL DEFAULT 0 CHECK (is_receipt IN (0, 1));

-- When the recipient's receipt for this delivery was taken: it is taken once.
ALTER TABLE delivery ADD COLUMN receipted_at INTEGER;

-- sha256 of event_id and event, so that a change by the disk is found before the bytes go out; older messages have none.
ALTER TABLE message ADD COLUMN digest BLOB CHECK (length(digest) = 32);

-- Receipts name messages by the ids of their events.
CREATE INDEX message_by_event ON message (event_id);

-- The oldest message that somebody waits for, found without reading the queues.
CREATE INDEX delivery_oldest ON delivery (seq) WHERE state = 'open' AND is_receipt = 0;

-- The greatest sequence that was accepted of a sender's device epoch: a device whose log was rolled back finds out here.
CREATE TABLE sender_epoch (
    mesh     TEXT NOT NULL,
    sender   TEXT NOT NULL,
    epoch    BLOB NOT NULL,
    sequence INTEGER NOT NULL,
    PRIMARY KEY (mesh, sender, epoch)
) STRICT;

INSERT INTO sender_epoch (mesh, sender, epoch, sequence)
SELECT mesh, sender, epoch, max(sequence) FROM history
WHERE kind IN ('accepted', 'admin') AND epoch IS NOT NULL AND sender IS NOT NULL
GROUP BY mesh, sender, epoch;

-- Restorations are few, and everybody who connects is told of them.
CREATE INDEX history_restored ON history (seq) WHERE kind = 'restored';

-- What became of a sender's messages, read from where it stopped the last time.
CREATE INDEX history_fates ON history (mesh, sender, seq)
WHERE kind IN ('delivered', 'expired', 'dropped', 'quarantined', 'moderated') OR (kind = 'accepted' AND reason IS NOT NULL);
