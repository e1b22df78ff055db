-- name: page
SELECT sequence, id, client_message_id, destination_kind, destination_ref, status, priority, reply_to, mentions, expires_at,
       enqueued_at, attempts, next_attempt_at, last_error, delivered_at, event_id, epoch, broker_message_id, history_id, log_id,
       aborted_at, aborted_by, superseded_by, length(blob)
FROM operation_log
WHERE sequence > :after
  AND (:destination_kind IS NULL OR destination_kind = :destination_kind)
  AND (:destination_ref IS NULL OR destination_ref = :destination_ref)
  AND ((:is_pending = 1 AND status = 'pending')
    OR (:is_inflight = 1 AND status = 'inflight')
    OR (:is_done = 1 AND status = 'done')
    OR (:is_dead = 1 AND status = 'dead')
    OR (:is_aborted = 1 AND status = 'aborted'))
ORDER BY sequence
LIMIT :limit

-- name: page_of_undone
-- The same without done rows, which are nearly all of a log; the others have their own indexes.
SELECT sequence, id, client_message_id, destination_kind, destination_ref, status, priority, reply_to, mentions, expires_at,
       enqueued_at, attempts, next_attempt_at, last_error, delivered_at, event_id, epoch, broker_message_id, history_id, log_id,
       aborted_at, aborted_by, superseded_by, length(blob)
FROM operation_log
WHERE sequence IN (
    SELECT sequence FROM operation_log WHERE status IN ('pending', 'inflight') AND sequence > :after
    UNION ALL
    SELECT sequence FROM operation_log WHERE status IN ('dead', 'aborted') AND sequence > :after
)
  AND (:destination_kind IS NULL OR destination_kind = :destination_kind)
  AND (:destination_ref IS NULL OR destination_ref = :destination_ref)
  AND ((:is_pending = 1 AND status = 'pending')
    OR (:is_inflight = 1 AND status = 'inflight')
    OR (:is_dead = 1 AND status = 'dead')
    OR (:is_aborted = 1 AND status = 'aborted'))
ORDER BY sequence
LIMIT :limit

-- name: count_by_status
SELECT status, rows FROM operation_count

-- name: count_given_up
SELECT count(*) FROM operation_log WHERE status = 'dead' AND destination_kind IN ('dm', 'topic')

-- name: find
-- A caller's client_message_id may look like the id of a row; then the row with that id is meant.
SELECT sequence, id, client_message_id, destination_kind, destination_ref, status, priority, reply_to, mentions, expires_at,
       enqueued_at, attempts, next_attempt_at, last_error, delivered_at, event_id, epoch, broker_message_id, history_id, log_id,
       aborted_at, aborted_by, superseded_by, length(blob)
FROM operation_log
WHERE id = :name OR client_message_id = :name
ORDER BY id = :name DESC
LIMIT 1

-- name: superseded_by
SELECT sequence, id, client_message_id, destination_kind, destination_ref, status, priority, reply_to, mentions, expires_at,
       enqueued_at, attempts, next_attempt_at, last_error, delivered_at, event_id, epoch, broker_message_id, history_id, log_id,
       aborted_at, aborted_by, superseded_by, length(blob)
FROM operation_log
WHERE superseded_by = :id

-- name: keep_yes
-- A yes of the relay is kept, whatever became of the row meanwhile.
UPDATE operation_log
SET status = :status, attempts = :attempts, delivered_at = :delivered_at, broker_message_id = :broker_message_id,
    history_id = :history_id, log_id = :log_id
WHERE sequence = :sequence AND status = :was

-- name: roll_back
-- The bytes stay the same, so that the relay recognises what it still has. Not snapshots: they may have gone to other relays,
-- and the sync with each relay offers what it lacks.
UPDATE operation_log
SET status = 'pending', delivered_at = NULL, broker_message_id = NULL, history_id = NULL, log_id = NULL, next_attempt_at = :now
WHERE sequence IN (
    SELECT sequence FROM operation_log
    WHERE status = 'done' AND destination_kind <> 'feed' AND log_id = :log_id AND history_id > :kept_through
      AND blob IS NOT NULL
    ORDER BY sequence
    LIMIT :limit
)
RETURNING sequence, id, client_message_id, destination_kind, destination_ref, status, priority, reply_to, mentions, expires_at,
          enqueued_at, attempts, next_attempt_at, last_error, delivered_at, event_id, epoch, broker_message_id, history_id, log_id,
          aborted_at, aborted_by, superseded_by, length(blob)

-- name: roll_back_dead
-- Dead is final, but without the relay's ids the row may be requeued. There are few such rows.
UPDATE operation_log
SET broker_message_id = NULL, history_id = NULL, log_id = NULL
WHERE status IN ('dead', 'aborted') AND status = 'dead' AND destination_kind <> 'feed'
  AND log_id = :log_id AND history_id > :kept_through
RETURNING sequence, id, client_message_id, destination_kind, destination_ref, status, priority, reply_to, mentions, expires_at,
          enqueued_at, attempts, next_attempt_at, last_error, delivered_at, event_id, epoch, broker_message_id, history_id, log_id,
          aborted_at, aborted_by, superseded_by, length(blob)

-- name: next_log
-- One log at a time, by jumps in an index: there are few logs, and many rows of each.
SELECT log_id FROM (
    SELECT log_id FROM operation_log
    WHERE status = 'done' AND destination_kind <> 'feed' AND log_id > :after
    ORDER BY log_id
    LIMIT 1
)
UNION
SELECT log_id FROM operation_log
WHERE status IN ('dead', 'aborted') AND status = 'dead' AND destination_kind <> 'feed' AND log_id > :after
ORDER BY log_id
LIMIT 1

-- name: lost
-- A direct message that was receipted is not lost, though the relay forgot it.
SELECT sequence FROM operation_log
WHERE status = 'done' AND destination_kind <> 'feed' AND log_id = :log_id AND history_id > :kept_through
  AND blob IS NULL
  AND NOT (destination_kind = 'dm' AND sequence IN (SELECT sequence FROM send_receipt))
ORDER BY sequence
LIMIT :limit

-- name: prune
-- Blob and event are dropped together: a row with either of them would count as one that can be offered again.
UPDATE operation_log SET blob = NULL, event = NULL
WHERE sequence IN (
    SELECT operation.sequence
    FROM operation_log AS operation
    WHERE operation.status = 'done' AND operation.blob IS NOT NULL AND operation.destination_kind IS NOT NULL
      AND operation.destination_kind <> 'admin'
      AND (operation.delivered_at < :before OR (operation.destination_kind = 'dm' AND EXISTS (
          SELECT 1 FROM send_receipt WHERE send_receipt.sequence = operation.sequence
      )))
    ORDER BY operation.sequence
    LIMIT :limit
)
