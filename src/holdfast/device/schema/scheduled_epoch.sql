-- The device's epoch when the send was asked for: a log that was copied since then is not the only one that releases it. NULL if
-- that was before this was written down.
ALTER TABLE scheduled_send ADD COLUMN epoch BLOB;
