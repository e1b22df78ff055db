-- name: create_device
INSERT INTO device (id, epoch) VALUES (1, :epoch) ON CONFLICT (id) DO NOTHING

-- name: device
SELECT epoch, backup FROM device

-- name: renew_epoch
UPDATE device SET epoch = :epoch, backup = 0

-- name: mark_backup
UPDATE device SET backup = 1

-- name: object_at
SELECT object_id FROM operation_log WHERE sequence = :sequence

-- name: mark_delivered
UPDATE operation_log SET status = 'done', delivered_at = :now
WHERE sequence = :sequence AND object_id = :object_id AND status IN ('pending', 'inflight')
RETURNING client_message_id

-- name: max_sequence
SELECT max(sequence) FROM operation_log

-- name: previous_sequence
SELECT max(sequence) FROM operation_log
WHERE destination_kind = :destination_kind AND destination_ref = :destination_ref
  AND status IN ('pending', 'inflight', 'done')

-- name: entries
SELECT sequence, object_id, blob, status, enqueued_at, delivered_at, digest
FROM operation_log
WHERE sequence > :after
ORDER BY sequence
LIMIT :limit

-- name: outbox
SELECT sequence, object_id, blob, status, enqueued_at, delivered_at, digest
FROM operation_log
WHERE sequence > :after AND status IN ('pending', 'inflight')
ORDER BY sequence
LIMIT :limit

-- name: entries_of_object
SELECT sequence, object_id, blob, status, enqueued_at, delivered_at, digest
FROM operation_log
WHERE object_id = :object_id AND sequence > :after
ORDER BY sequence
LIMIT :limit

-- name: objects_between
SELECT DISTINCT object_id FROM operation_log WHERE object_id BETWEEN :first AND :last ORDER BY object_id LIMIT 2

-- name: prune_blobs
-- Only the blob goes: the row keeps its sequence and its id from being used again.
UPDATE operation_log SET blob = NULL
WHERE sequence IN (
    SELECT sequence FROM operation_log WHERE sequence <= :through AND status = 'done' AND blob IS NOT NULL LIMIT :limit
)

-- name: count
SELECT count(*), count(*) FILTER (WHERE status IN ('pending', 'inflight')) FROM operation_log

-- name: waiting_for
-- Unconfirmed operations to a destination, in the order of sending.
SELECT id, sequence, client_message_id, destination_kind, destination_ref, blob, event, status, enqueued_at, attempts,
       last_error, priority, reply_to, mentions, expires_at, object_id, digest
FROM operation_log
WHERE destination_kind = :destination_kind AND destination_ref = :destination_ref AND status IN ('pending', 'inflight')
ORDER BY sequence

-- name: operation_called
SELECT id, sequence, client_message_id, destination_kind, destination_ref, blob, event, status, enqueued_at, attempts,
       last_error, priority, reply_to, mentions, expires_at, object_id, digest
FROM operation_log
WHERE client_message_id = :client_message_id

-- name: count_appended
-- Later changes of status are counted by triggers.
UPDATE operation_count SET rows = rows + :count WHERE status = 'pending'

-- name: recount
-- For rows that were not appended. (Without WHERE, SQLite would parse ON CONFLICT as the condition of a join.)
INSERT INTO operation_count (status, rows)
SELECT known.status, (SELECT count(*) FROM operation_log WHERE operation_log.status = known.status)
FROM (SELECT 'pending' AS status UNION ALL SELECT 'inflight' UNION ALL SELECT 'done' UNION ALL SELECT 'dead'
      UNION ALL SELECT 'aborted') AS known
WHERE known.status IS NOT NULL
ON CONFLICT (status) DO UPDATE SET rows = excluded.rows

-- name: operations_wanted
SELECT operation.id, operation.sequence, operation.client_message_id, operation.destination_kind,
       operation.destination_ref, operation.blob, operation.event, operation.status, operation.enqueued_at,
       operation.attempts, operation.last_error, operation.priority, operation.reply_to, operation.mentions,
       operation.expires_at, operation.object_id, operation.digest
FROM wanted
JOIN operation_log AS operation ON operation.sequence = wanted.sequence

-- name: in_flight
SELECT id, sequence, client_message_id, destination_kind, destination_ref, blob, event, status, enqueued_at, attempts,
       last_error, priority, reply_to, mentions, expires_at, object_id, digest
FROM operation_log
WHERE status = 'inflight' AND destination_kind NOT IN ('admin', 'feed')
ORDER BY sequence
LIMIT :limit

-- name: too_old
-- Only pending rows age out: one in flight may be committed at this moment. The oldest come first, so that no others are read.
-- A relay recognises a snapshot for ever, so a snapshot may wait for ever.
SELECT id, sequence, client_message_id, destination_kind, destination_ref, blob, event, status, enqueued_at, attempts,
       last_error, priority, reply_to, mentions, expires_at, object_id, digest
FROM operation_log
WHERE sequence IN (
    SELECT sequence FROM operation_log
    WHERE status IN ('pending', 'inflight') AND destination_kind NOT IN ('admin', 'feed')
    ORDER BY sequence
    LIMIT :limit
) AND status = 'pending' AND enqueued_at <= :enqueued_before
ORDER BY sequence

-- name: administration_done
-- Administration that the relay has carried out for this device, in order; few rows.
SELECT event FROM operation_log
WHERE destination_kind = 'admin' AND status = 'done' AND event IS NOT NULL
ORDER BY sequence

-- name: expired_unsent
-- Expired rows that were never sealed. A sealed one may have been sent, so it is left to the relay to expire it.
SELECT id, sequence, client_message_id, destination_kind, destination_ref, blob, event, status, enqueued_at, attempts,
       last_error, priority, reply_to, mentions, expires_at, object_id, digest
FROM operation_log
WHERE status IN ('pending', 'inflight') AND status = 'pending' AND event IS NULL AND expires_at <= :now
ORDER BY sequence
LIMIT :limit

-- name: lost_at
-- When it was noticed that the relay had lost an operation which it had confirmed.
SELECT max(at) FROM history
WHERE client_message_id = :client_message_id AND kind = 'attempted' AND reason = 'rolled_back'

-- name: highest_claimed
-- The epoch stays on a row when its event is pruned, so this covers all that was ever signed with it.
SELECT sequence FROM operation_log WHERE epoch = :epoch ORDER BY sequence DESC LIMIT 1

-- name: last_administration
-- Administration is signed in the order of its sequences, so the last event has the greatest counter.
SELECT event FROM operation_log
WHERE destination_kind = 'admin' AND event IS NOT NULL
ORDER BY sequence DESC
LIMIT 1

-- name: claim
-- From here on this event is what is sent under this id; it is on disk before its first byte is sent.
UPDATE operation_log SET status = :status, event = :event, event_id = :event_id, epoch = :epoch
WHERE sequence = :sequence AND status = :was

-- name: settle
-- Compare and set: a decision on a status that has changed since must not be applied.
UPDATE operation_log
SET status = :status, event = :event, attempts = :attempts, next_attempt_at = :next_attempt_at, last_error = :last_error,
    delivered_at = :delivered_at, broker_message_id = :broker_message_id, history_id = :history_id, log_id = :log_id,
    event_id = CASE WHEN :event IS NULL THEN NULL ELSE event_id END
WHERE sequence = :sequence AND status = :was

-- name: abort
-- The row names its successor, so that the chain can be followed.
UPDATE operation_log
SET status = :status, aborted_at = :now, aborted_by = :aborted_by, superseded_by = :superseded_by
WHERE sequence = :sequence AND status = :was
