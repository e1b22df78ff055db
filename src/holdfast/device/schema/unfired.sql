-- What a message sets off is told by the history and by what an application has acted on: there is no mark of its own for it.
DROP INDEX inbox_unfired;
ALTER TABLE inbox DROP COLUMN fired_at;

-- What was replayed is nobody's to act on, and is not counted among what is.
DROP INDEX inbox_undone;
CREATE INDEX inbox_undone ON inbox (applied_at, parked_at, replayed) WHERE applied_at IS NULL;
