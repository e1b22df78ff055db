-- Only messages with open deliveries: one that was found damaged when it was to be sent is quarantined already.
-- name: waiting
SELECT seq, message_id, event_id, event, digest
FROM message
WHERE seq > :after AND EXISTS (SELECT 1 FROM delivery WHERE delivery.seq = message.seq AND delivery.state = 'open')
ORDER BY seq
LIMIT :limit
