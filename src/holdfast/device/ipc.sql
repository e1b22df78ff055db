-- name: depth
-- Only what waits is counted, through its own index: the log behind it may be long.
SELECT count(*), count(*) FILTER (WHERE status = 'inflight') FROM operation_log WHERE status IN ('pending', 'inflight')

-- name: inbox_counts
SELECT count(*) FILTER (WHERE parked_at IS NULL), count(*) FILTER (WHERE parked_at IS NOT NULL)
FROM inbox WHERE applied_at IS NULL
