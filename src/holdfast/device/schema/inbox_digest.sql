-- What was opened is what is read, whatever a disk does meanwhile: sha256 of the object's id, the meta and the body. Rows from
-- before have none.
ALTER TABLE inbox ADD COLUMN digest BLOB CHECK (length(digest) = 32);
