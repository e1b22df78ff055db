-- name: page
SELECT arrival, id, client_message_id, broker_message_id, mesh, topic, sender, sender_pubkey, sender_name, epoch, sequence,
       previous_sequence, event_id, status, object_id, body, meta, priority, reply_to, mentions, expires_at, sent_at,
       received_at, was_stored, replayed, opened_at, pruned_at, applied_at, parked_at, handler_attempts, last_error
FROM inbox
WHERE arrival > :after
  AND (:since IS NULL OR received_at >= :since)
  AND (:topic IS NULL OR topic = :topic)
  AND (:sender IS NULL OR sender = :sender)
  AND (:mentions_of IS NULL OR arrival IN (SELECT arrival FROM inbox_mention WHERE member = :mentions_of))
  AND (:parked = 0 OR (parked_at IS NOT NULL AND applied_at IS NULL))
ORDER BY arrival
LIMIT :limit

-- name: page_of_unapplied
-- The same for what no application has acted on, from an index: programs ask for it again and again, and the inbox is long.
SELECT arrival, id, client_message_id, broker_message_id, mesh, topic, sender, sender_pubkey, sender_name, epoch, sequence,
       previous_sequence, event_id, status, object_id, body, meta, priority, reply_to, mentions, expires_at, sent_at,
       received_at, was_stored, replayed, opened_at, pruned_at, applied_at, parked_at, handler_attempts, last_error
FROM inbox
WHERE arrival > :after
  AND (:since IS NULL OR received_at >= :since)
  AND (:topic IS NULL OR topic = :topic)
  AND (:sender IS NULL OR sender = :sender)
  AND (:mentions_of IS NULL OR arrival IN (SELECT arrival FROM inbox_mention WHERE member = :mentions_of))
  AND (:parked = 0 OR (parked_at IS NOT NULL AND applied_at IS NULL))
  AND applied_at IS NULL AND parked_at IS NULL AND replayed = 0
ORDER BY arrival
LIMIT :limit

-- name: find
SELECT arrival, id, client_message_id, broker_message_id, mesh, topic, sender, sender_pubkey, sender_name, epoch, sequence,
       previous_sequence, event_id, status, object_id, body, meta, priority, reply_to, mentions, expires_at, sent_at,
       received_at, was_stored, replayed, opened_at, pruned_at, applied_at, parked_at, handler_attempts, last_error
FROM inbox
WHERE id = :id

-- name: called
SELECT arrival, id, client_message_id, broker_message_id, mesh, topic, sender, sender_pubkey, sender_name, epoch, sequence,
       previous_sequence, event_id, status, object_id, body, meta, priority, reply_to, mentions, expires_at, sent_at,
       received_at, was_stored, replayed, opened_at, pruned_at, applied_at, parked_at, handler_attempts, last_error
FROM inbox
WHERE client_message_id = :client_message_id
ORDER BY arrival

-- name: apply
UPDATE inbox SET applied_at = :now WHERE id = :id AND applied_at IS NULL
RETURNING broker_message_id, client_message_id, sender, event_id

-- name: fail
-- A failure changes nothing if the message was applied or parked meanwhile.
UPDATE inbox
SET handler_attempts = handler_attempts + 1, last_error = :last_error,
    parked_at = CASE WHEN handler_attempts + 1 >= :attempts_max THEN :now END
WHERE id = :id AND applied_at IS NULL AND parked_at IS NULL

-- name: prune
UPDATE inbox SET pruned_at = :now, body = NULL, meta = NULL, event = NULL
WHERE arrival IN (
    SELECT arrival FROM inbox WHERE pruned_at IS NULL AND received_at < :before ORDER BY received_at, arrival LIMIT :limit
)

-- name: prune_duplicates
UPDATE inbox_duplicate SET event = NULL
WHERE event_id IN (
    SELECT event_id FROM inbox_duplicate WHERE event IS NOT NULL AND received_at < :before LIMIT :limit
)

-- name: holes
-- Posts to a topic before the first one that came are not missing: this member may have subscribed later.
SELECT 'hole', later.sender, later.previous_sequence, later.epoch, later.event_id, later.received_at
FROM inbox AS later
WHERE later.previous_sequence IS NOT NULL
  AND NOT EXISTS (
      SELECT 1 FROM inbox AS earlier
      WHERE earlier.sender = later.sender AND earlier.sequence = later.previous_sequence
        AND coalesce(earlier.topic, '') = coalesce(later.topic, '')
  )
  AND NOT EXISTS (
      SELECT 1 FROM inbox_duplicate AS earlier
      WHERE earlier.sender = later.sender AND earlier.sequence = later.previous_sequence
  )
  AND (later.topic IS NULL OR EXISTS (
      SELECT 1 FROM inbox AS earlier
      WHERE earlier.sender = later.sender AND earlier.sequence < later.sequence AND earlier.topic = later.topic
  ))
ORDER BY later.arrival DESC
LIMIT :limit

-- name: equivocations
-- Names the event that came later; the other one has the same sender, epoch and sequence. The few sequences that may have two
-- are found in indexes first, because the inbox is long and its rows are large.
SELECT 'equivocation', found.sender, found.sequence, found.epoch, found.event_id, found.received_at
FROM (
    SELECT every.sender, every.sequence, every.epoch, every.event_id, every.received_at,
           row_number() OVER (PARTITION BY every.sender, every.epoch, every.sequence ORDER BY every.received_at, every.is_duplicate, every.event_id)
               AS place
    FROM (
        SELECT sender, sequence FROM inbox GROUP BY sender, sequence HAVING count(*) > 1
        UNION
        SELECT sender, sequence FROM inbox_duplicate
    ) AS shared
    JOIN (
        SELECT sender, sequence, epoch, event_id, received_at, 0 AS is_duplicate FROM inbox
        UNION ALL
        SELECT sender, sequence, epoch, event_id, received_at, 1 FROM inbox_duplicate
    ) AS every ON every.sender = shared.sender AND every.sequence = shared.sequence
) AS found
WHERE found.place > 1
ORDER BY found.received_at DESC
LIMIT :limit

-- name: resets
SELECT 'reset', sender, NULL, epoch, NULL, since
FROM sender_epoch
WHERE number > 0
ORDER BY since DESC, sender, number DESC
LIMIT :limit
