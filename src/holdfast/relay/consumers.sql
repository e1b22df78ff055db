-- name: consumer
SELECT name, log_id, seq, registered_at, moved_at FROM consumer WHERE name = :name

-- name: move
INSERT INTO consumer (name, log_id, seq, registered_at, moved_at) VALUES (:name, :log_id, :seq, :now, :moved_at)
ON CONFLICT (name) DO UPDATE SET log_id = excluded.log_id, seq = excluded.seq, moved_at = excluded.moved_at

-- name: slowest
-- The position that no pruning may pass: that of the slowest active consumer.
SELECT min(seq) FROM consumer WHERE moved_at > :since

-- name: furthest
-- Some consumer has everything up to this position. A checkpoint in the log that this one was restored from counts too: it was
-- copied with it, so it lies before the fork.
SELECT coalesce(max(seq), 0) FROM consumer
