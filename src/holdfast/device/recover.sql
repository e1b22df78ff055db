-- name: forget_entries
-- A history with holes proves nothing.
DELETE FROM history

-- name: begin_behind_them
UPDATE history_head SET anchor_seq = seq, anchor_chain = chain

-- name: forget_positions
-- Snapshots from relays may be lost, so the whole state of each relay is fetched again.
UPDATE feed_relay SET log_id = NULL, seq = NULL

-- name: want_replay
-- Kept until the replay is complete, whatever interrupts it.
INSERT INTO cursor (name, log_id, seq, moved_at) VALUES ('replay', :log_id, 0, :now)
ON CONFLICT (name) DO UPDATE SET moved_at = excluded.moved_at

-- name: wants_replay
SELECT 1 FROM cursor WHERE name = 'replay'

-- name: replayed
DELETE FROM cursor WHERE name = 'replay'
