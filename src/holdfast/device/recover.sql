-- name: forget_entries
-- A history with holes proves nothing.
DELETE FROM history

-- name: begin_behind_them
UPDATE history_head SET anchor_seq = seq, anchor_chain = chain

-- name: forget_positions
-- What came from relays may be among what is lost: their whole state is fetched anew.
UPDATE feed_relay SET log_id = NULL, seq = NULL

-- name: want_replay
-- Until it has happened, whatever interrupts it.
INSERT INTO cursor (name, log_id, seq, moved_at) VALUES ('replay', :log_id, 0, :now)
ON CONFLICT (name) DO UPDATE SET moved_at = excluded.moved_at

-- name: wants_replay
SELECT 1 FROM cursor WHERE name = 'replay'

-- name: replayed
DELETE FROM cursor WHERE name = 'replay'
