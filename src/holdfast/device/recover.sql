-- name: forget_entries
-- A history with holes proves nothing.
DELETE FROM history

-- name: begin_behind_them
-- Behind the first position at least, even if the head is lost with all that it counted: a history that begins with the first
-- would have to explain every row.
UPDATE history_head SET seq = max(seq, 1), anchor_seq = max(seq, 1), anchor_chain = chain

-- name: forget_positions
-- Snapshots from relays may be lost, so the whole state of each relay is fetched again.
UPDATE feed_relay SET log_id = NULL, seq = NULL

-- name: replayed
INSERT INTO cursor (name, log_id, seq, moved_at) VALUES ('replay', :log_id, 0, :now)
ON CONFLICT (name) DO UPDATE SET log_id = excluded.log_id, moved_at = excluded.moved_at

-- name: replayed_in
SELECT log_id FROM cursor WHERE name = 'replay'
