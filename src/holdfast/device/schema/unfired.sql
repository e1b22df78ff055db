-- The history and the `applied_at` of messages drive all effects of a message, so a mark of its own is not needed.
DROP INDEX inbox_unfired;
ALTER TABLE inbox DROP COLUMN fired_at;

-- Replayed messages were acted on before they were lost, so they are not counted as unapplied.
DROP INDEX inbox_undone;
CREATE INDEX inbox_undone ON inbox (applied_at, parked_at, replayed) WHERE applied_at IS NULL;
