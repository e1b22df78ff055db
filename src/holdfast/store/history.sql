-- name: create_head
-- Two processes may open a new database at once: the first one's log id stays.
INSERT INTO history_head (id, log_id, seq, at, chain, anchor_seq, anchor_chain)
VALUES (1, :log_id, 0, 0, :chain, 0, :chain)
ON CONFLICT (id) DO NOTHING

-- name: head
SELECT log_id, seq, at, chain, anchor_seq, anchor_chain FROM history_head

-- name: lock_head
-- An update that changes nothing takes the row on PostgreSQL, where FOR UPDATE would not be SQLite's language.
UPDATE history_head SET seq = seq RETURNING log_id, seq, at, chain, anchor_seq, anchor_chain

-- name: move_head
UPDATE history_head SET seq = :seq, at = :at, chain = :chain

-- name: read
SELECT seq, at, kind, mesh, message_id, client_message_id, sender, epoch, sequence, recipient, recipients, mentions,
       destination_kind, destination_ref, event_id, size, was_stored, reason, detail, chain
FROM history
WHERE seq > :after AND seq <= :until
ORDER BY seq
LIMIT :limit

-- name: chain_at
SELECT chain FROM history WHERE seq = :seq

-- name: move_anchor
UPDATE history_head SET anchor_seq = :seq, anchor_chain = :chain

-- name: delete_through
DELETE FROM history WHERE seq <= :seq

-- name: rename
UPDATE history_head SET log_id = :log_id
