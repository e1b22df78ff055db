-- How often a mesh was administered: whoever knows its document at one revision knows it until the next.
ALTER TABLE mesh ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
