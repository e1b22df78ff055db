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
-- The row stays, and with it the sequence and the id: neither is ever given out again.
UPDATE operation_log SET blob = NULL
WHERE sequence IN (
    SELECT sequence FROM operation_log WHERE sequence <= :through AND status = 'done' AND blob IS NOT NULL LIMIT :limit
)

-- name: count
SELECT count(*), count(*) FILTER (WHERE status IN ('pending', 'inflight')) FROM operation_log

-- name: waiting_for
-- What is still to be sent to a destination, in the order of sending.
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
-- Its moves from here on are counted by triggers.
UPDATE operation_count SET rows = rows + :count WHERE status = 'pending'

-- name: recount
-- For rows that came otherwise than by appending. (Without WHERE the conflict would be read as a join's condition.)
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
-- Only what waits may age out: what is in flight may be committed this very moment. The oldest stand first, so no more
-- than those are looked at. A snapshot is recognised by its relay for ever, so it may wait for ever.
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
-- What the relay has carried out for this device, in the order in which it was asked for; few rows.
SELECT event FROM operation_log
WHERE destination_kind = 'admin' AND status = 'done' AND event IS NOT NULL
ORDER BY sequence

-- name: expired_unsent
-- Worthless by their senders' own word, and nobody can have them: what was sealed may have left, and is the relay's to judge.
SELECT id, sequence, client_message_id, destination_kind, destination_ref, blob, event, status, enqueued_at, attempts,
       last_error, priority, reply_to, mentions, expires_at, object_id, digest
FROM operation_log
WHERE status IN ('pending', 'inflight') AND status = 'pending' AND event IS NULL AND expires_at <= :now
ORDER BY sequence
LIMIT :limit

-- name: lost_at
-- When the relay was found to have lost an operation that it had confirmed.
SELECT max(at) FROM history
WHERE client_message_id = :client_message_id AND kind = 'attempted' AND reason = 'rolled_back'

-- name: highest_claimed
-- The epoch of an event stays on its row when the event goes, so this is all that was ever signed with it.
SELECT sequence FROM operation_log WHERE epoch = :epoch ORDER BY sequence DESC LIMIT 1

-- name: last_administration
-- Administration is signed in the order of its sequences, so the last event has the greatest counter.
SELECT event FROM operation_log
WHERE destination_kind = 'admin' AND event IS NOT NULL
ORDER BY sequence DESC
LIMIT 1

-- name: claim
-- From here on the event is what is sent under this id: it is on disk before its first byte leaves.
UPDATE operation_log SET status = :status, event = :event, event_id = :event_id, epoch = :epoch
WHERE sequence = :sequence AND status = :was

-- name: settle
-- Compare and set: whoever read another status decides on something that is no longer so.
UPDATE operation_log
SET status = :status, event = :event, attempts = :attempts, next_attempt_at = :next_attempt_at, last_error = :last_error,
    delivered_at = :delivered_at, broker_message_id = :broker_message_id, history_id = :history_id, log_id = :log_id,
    event_id = CASE WHEN :event IS NULL THEN NULL ELSE event_id END
WHERE sequence = :sequence AND status = :was

-- name: abort
-- Its successor has its own id; this one keeps the name of it, for whoever follows the chain.
UPDATE operation_log
SET status = :status, aborted_at = :now, aborted_by = :aborted_by, superseded_by = :superseded_by
WHERE sequence = :sequence AND status = :was
