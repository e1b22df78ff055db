-- name: expired_dedupe
-- Ids that no device may offer again: events that old are refused, so a forgotten id is never accepted twice.
SELECT mesh, sender, client_message_id, message_id, first_seen_at FROM dedupe
WHERE expires_at <= :now AND first_seen_at <= :cutoff
ORDER BY expires_at
LIMIT :limit

-- name: forget_dedupe
-- One statement for all rows, here and below: each is a round trip to a server, while others wait.
DELETE FROM dedupe
WHERE (mesh, sender, client_message_id) IN (SELECT wanted.mesh, wanted.sender, wanted.client_message_id FROM wanted)

-- name: note_forgotten
UPDATE forgotten SET before = :before WHERE before < :before

-- name: forgotten_before
SELECT before FROM forgotten

-- name: last_old_message
-- Times grow with positions, so everything up to this position is old enough, and nothing younger is read.
SELECT seq FROM message WHERE accepted_at <= :cutoff ORDER BY accepted_at DESC, seq DESC LIMIT 1

-- name: settled_messages
-- Messages that nobody waits for and whose last closing is old and passed by every reader of the history.
SELECT message.seq, message.mesh, message.sender, message.client_message_id, message.message_id
FROM message
WHERE message.seq <= :until
  AND NOT EXISTS (
      SELECT 1 FROM delivery
      WHERE delivery.seq = message.seq AND (delivery.state = 'open' OR delivery.closed_at >= :closed_before)
  )
ORDER BY message.seq
LIMIT :limit

-- name: time_at
SELECT at FROM history WHERE seq = :seq

-- name: flip_available
UPDATE dedupe SET history_available = 0
WHERE (mesh, sender, client_message_id) IN (SELECT wanted.mesh, wanted.sender, wanted.client_message_id FROM wanted)

-- name: delete_message
DELETE FROM message WHERE seq IN (SELECT wanted.seq FROM wanted)

-- name: delete_deliveries
DELETE FROM delivery WHERE seq IN (SELECT wanted.seq FROM wanted)

-- name: delete_mentions
DELETE FROM mention WHERE seq IN (SELECT wanted.seq FROM wanted)

-- name: old_grants
-- Keys that were superseded long enough ago that nothing sealed with them can still be queued.
SELECT mesh, topic, key_epoch, member FROM topic_grant WHERE superseded_at <= :cutoff LIMIT :limit

-- name: drop_grant
DELETE FROM topic_grant
WHERE (mesh, topic, key_epoch, member) IN (SELECT wanted.mesh, wanted.topic, wanted.key_epoch, wanted.member FROM wanted)
