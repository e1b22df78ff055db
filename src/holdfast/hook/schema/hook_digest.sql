-- An event is handled as it was stored, whatever a disk does meanwhile: sha256 of what it is and of its payload. Rows from
-- before have none.
ALTER TABLE hook_outbox ADD COLUMN digest BLOB CHECK (length(digest) = 32);
