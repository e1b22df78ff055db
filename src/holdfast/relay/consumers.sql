-- name: consumer
SELECT name, log_id, seq, registered_at, moved_at FROM consumer WHERE name = :name

-- name: move
INSERT INTO consumer (name, log_id, seq, registered_at, moved_at) VALUES (:name, :log_id, :seq, :now, :moved_at)
ON CONFLICT (name) DO UPDATE SET log_id = excluded.log_id, seq = excluded.seq, moved_at = excluded.moved_at

-- name: slowest
-- The position that no pruning may pass: that of the slowest consumer that still comes.
SELECT min(seq) FROM consumer WHERE moved_at > :since

-- name: furthest
-- What lies behind this is in somebody else's keeping. A checkpoint of the log that this one was restored from counts, too:
-- it was copied with it, so it lies before the fork.
SELECT coalesce(max(seq), 0) FROM consumer
