-- name: claim_key
INSERT INTO relay_key (id, pubkey) VALUES (1, :pubkey) ON CONFLICT (id) DO NOTHING

-- name: key
SELECT pubkey FROM relay_key

-- name: last_number
SELECT max(number) FROM queue_reader

-- name: take_queue
INSERT INTO queue_reader (mesh, member, number) VALUES (:mesh, :member, :number)
ON CONFLICT (mesh, member) DO UPDATE SET number = excluded.number

-- name: taken_by
SELECT number FROM queue_reader WHERE mesh = :mesh AND member = :member

-- name: taken_since
SELECT mesh, member FROM queue_reader WHERE number > :after

-- name: administered_since
-- The administration after a position; some actions end a member's right to read.
SELECT mesh, detail FROM history WHERE seq > :after AND kind = 'admin' AND mesh IS NOT NULL

-- name: begin_bootstrap
INSERT INTO bootstrap (key, author, seq, began_at) VALUES (:key, :author, :seq, :began_at)

-- name: end_bootstrap
DELETE FROM bootstrap WHERE key = :key

-- name: bootstraps_since
SELECT author, seq, began_at FROM bootstrap WHERE began_at > :after ORDER BY key

-- name: drop_old_bootstraps
-- Bootstraps that ran out of time, or whose relay died: they no longer hold back compaction.
DELETE FROM bootstrap WHERE began_at <= :until
