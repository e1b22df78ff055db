-- name: oldest
-- What has waited longest for the relay's word, and why it does.
SELECT enqueued_at, last_error FROM operation_log WHERE status IN ('pending', 'inflight') ORDER BY sequence LIMIT 1

-- name: restored
-- The logs that this one goes back to, the oldest first; asked for by a cursor of another log only.
SELECT detail FROM history WHERE kind = 'restored' ORDER BY seq

-- name: inbox_counts
-- From the index alone: the inbox is long, and its rows are large.
SELECT count(*) FILTER (WHERE parked_at IS NULL AND replayed = 0), count(*) FILTER (WHERE parked_at IS NOT NULL)
FROM inbox WHERE applied_at IS NULL
