-- name: is_known
SELECT event_id FROM inbox WHERE event_id = :event_id
UNION ALL
SELECT event_id FROM inbox_duplicate WHERE event_id = :event_id

-- name: is_taken
SELECT id FROM inbox WHERE sender = :sender AND client_message_id = :client_message_id

-- name: rivals
-- Other events that this sender signed with the same epoch and sequence: it has two histories.
SELECT event_id FROM inbox WHERE sender = :sender AND sequence = :sequence AND epoch = :epoch
UNION ALL
SELECT event_id FROM inbox_duplicate WHERE sender = :sender AND sequence = :sequence AND epoch = :epoch
LIMIT 1

-- name: is_missing
-- Posts to a topic before the first one that came are not missing: this member may have subscribed later.
SELECT 1
WHERE NOT EXISTS (
    SELECT 1 FROM inbox
    WHERE sender = :sender AND sequence = :previous_sequence AND coalesce(topic, '') = coalesce(:topic, '')
) AND NOT EXISTS (
    SELECT 1 FROM inbox_duplicate WHERE sender = :sender AND sequence = :previous_sequence
) AND (:topic IS NULL OR EXISTS (
    SELECT 1 FROM inbox WHERE sender = :sender AND sequence < :sequence AND topic = :topic
))

-- name: last_epoch
SELECT epoch FROM sender_epoch WHERE sender = :sender ORDER BY number DESC LIMIT 1

-- name: meet_epoch
INSERT INTO sender_epoch (sender, epoch, number, since)
VALUES (:sender, :epoch, (SELECT count(*) FROM sender_epoch WHERE sender = :sender), :now)
ON CONFLICT (sender, epoch) DO NOTHING

-- name: store
INSERT INTO inbox
    (arrival, id, client_message_id, broker_message_id, mesh, topic, sender, sender_pubkey, sender_name, epoch, sequence,
     previous_sequence, event_id, event, status, object_id, body, meta, priority, reply_to, mentions, expires_at, sent_at,
     received_at, was_stored, replayed, log_id, history_id, digest)
VALUES ((SELECT coalesce(max(arrival), 0) + 1 FROM inbox), :id, :client_message_id, :broker_message_id, :mesh, :topic, :sender,
        :sender_pubkey, :sender_name, :epoch, :sequence, :previous_sequence, :event_id, :event, :status, :object_id, :body,
        :meta, :priority, :reply_to, :mentions, :expires_at, :sent_at, :now, :was_stored, :replayed, :log_id, :history_id,
        :digest)
RETURNING arrival

-- name: store_duplicate
INSERT INTO inbox_duplicate
    (event_id, event, client_message_id, broker_message_id, sender, epoch, sequence, received_at)
VALUES (:event_id, :event, :client_message_id, :broker_message_id, :sender, :epoch, :sequence, :now)

-- name: receipted
UPDATE inbox SET receipt_sequence = :sequence WHERE event_id = :event_id

-- name: duplicate_receipted
UPDATE inbox_duplicate SET receipt_sequence = :sequence WHERE event_id = :event_id

-- name: receipt_in_vain
-- The receipt of an event that came again, if the receipt is dead. One in flight counts as well if the relay was restored since
-- the event first came: the relay may have refused it just before it got the event back.
SELECT operation.blob
FROM (
    SELECT receipt_sequence, log_id FROM inbox WHERE event_id = :event_id
    UNION ALL
    SELECT receipt_sequence, :log_id FROM inbox_duplicate WHERE event_id = :event_id
) AS arrived
JOIN operation_log AS operation ON operation.sequence = arrived.receipt_sequence
WHERE operation.status = 'dead' OR (operation.status = 'inflight' AND arrived.log_id <> :log_id)

-- name: unreadable
SELECT arrival, id, topic, sender, event
FROM inbox
WHERE status = 'unreadable' AND pruned_at IS NULL AND arrival > :after AND (:topic IS NULL OR topic = :topic)
ORDER BY arrival
LIMIT :limit

-- name: open
-- The sealed event stays, because it is what the sender signed.
UPDATE inbox
SET status = 'stored', object_id = :object_id, body = :body, meta = :meta, previous_sequence = :previous_sequence,
    digest = :digest, opened_at = :now
WHERE id = :id AND status = 'unreadable' AND pruned_at IS NULL
RETURNING broker_message_id, client_message_id, sender, event_id
