-- Shows a change of a message's content on disk: sha256 of the object id, the meta and the body. Older rows have none.
ALTER TABLE inbox ADD COLUMN digest BLOB CHECK (length(digest) = 32);
