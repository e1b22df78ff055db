-- Whose documents are handed over, and the position of the state: only that is held back. A relay that does not know of these
-- columns yet holds back everything.
ALTER TABLE bootstrap ADD COLUMN author TEXT NOT NULL DEFAULT '';
ALTER TABLE bootstrap ADD COLUMN seq INTEGER NOT NULL DEFAULT 0;
