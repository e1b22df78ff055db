-- name: oldest
-- The row that has waited longest for the relay's answer, and why.
SELECT enqueued_at, last_error FROM operation_log WHERE status IN ('pending', 'inflight') ORDER BY sequence LIMIT 1

-- name: restored
-- The restorations of this history, the oldest first; read only for a cursor of another log.
SELECT detail FROM history WHERE kind = 'restored' ORDER BY seq

-- name: inbox_counts
-- Answered from an index alone, because the inbox is long and its rows are large.
SELECT count(*) FILTER (WHERE parked_at IS NULL AND replayed = 0), count(*) FILTER (WHERE parked_at IS NOT NULL)
FROM inbox WHERE applied_at IS NULL
