-- name: expired_dedupe
-- Ids that no device may offer again: events that old are refused, so forgetting one readmits nothing.
SELECT mesh, sender, client_message_id, message_id FROM dedupe
WHERE expires_at <= :now
ORDER BY expires_at
LIMIT :limit

-- name: forget_dedupe
DELETE FROM dedupe WHERE mesh = :mesh AND sender = :sender AND client_message_id = :client_message_id

-- name: old_messages
-- Messages past their time that nobody waits for, and that every reader of the history has passed.
SELECT message.seq, message.mesh, message.sender, message.client_message_id, message.message_id
FROM message
WHERE message.accepted_at <= :cutoff AND message.seq <= :passed
  AND NOT EXISTS (SELECT 1 FROM delivery WHERE delivery.seq = message.seq AND delivery.state = 'open')
ORDER BY message.seq
LIMIT :limit

-- name: flip_available
UPDATE dedupe SET history_available = 0
WHERE mesh = :mesh AND sender = :sender AND client_message_id = :client_message_id

-- name: delete_message
DELETE FROM message WHERE seq = :seq

-- name: delete_deliveries
DELETE FROM delivery WHERE seq = :seq

-- name: delete_mentions
DELETE FROM mention WHERE seq = :seq

-- name: old_grants
-- Keys that were superseded long enough ago that nothing sealed with them can still be queued.
DELETE FROM topic_grant WHERE superseded_at <= :cutoff
