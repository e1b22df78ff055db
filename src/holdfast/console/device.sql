-- name: operations
-- Without the blob: a list shows none, and it is most of the row.
SELECT operation_log.sequence, operation_log.id, operation_log.client_message_id, operation_log.destination_kind,
       operation_log.destination_ref, operation_log.status, operation_log.enqueued_at, operation_log.attempts,
       operation_log.next_attempt_at, operation_log.last_error, operation_log.delivered_at, operation_log.superseded_by,
       length(operation_log.blob)
FROM wanted JOIN operation_log ON operation_log.sequence = wanted.sequence

-- name: newest_sent
-- Pages are found as positions first, each way by an index of its own; what they show is looked up afterwards.
SELECT sequence FROM operation_log WHERE destination_kind IN ('dm', 'topic') AND sequence < :at ORDER BY sequence DESC LIMIT :limit

-- name: oldest_sent
SELECT sequence FROM operation_log WHERE destination_kind IN ('dm', 'topic') AND sequence > :at ORDER BY sequence LIMIT :limit

-- name: newest_everything
SELECT sequence FROM operation_log WHERE sequence < :at ORDER BY sequence DESC LIMIT :limit

-- name: oldest_everything
SELECT sequence FROM operation_log WHERE sequence > :at ORDER BY sequence LIMIT :limit

-- name: newest_waiting
-- The conditions are the indexes', word for word: what is done is nearly all of a log.
SELECT sequence FROM operation_log WHERE status IN ('pending', 'inflight') AND sequence < :at ORDER BY sequence DESC LIMIT :limit

-- name: oldest_waiting
SELECT sequence FROM operation_log WHERE status IN ('pending', 'inflight') AND sequence > :at ORDER BY sequence LIMIT :limit

-- name: newest_dead
-- Messages only: what else was given up is with everything, and cannot be sent again.
SELECT sequence FROM operation_log WHERE status = 'dead' AND destination_kind IN ('dm', 'topic') AND sequence < :at ORDER BY sequence DESC LIMIT :limit

-- name: oldest_dead
SELECT sequence FROM operation_log WHERE status = 'dead' AND destination_kind IN ('dm', 'topic') AND sequence > :at ORDER BY sequence LIMIT :limit

-- name: newest_aborted
SELECT sequence FROM operation_log WHERE status IN ('dead', 'aborted') AND status = 'aborted' AND sequence < :at ORDER BY sequence DESC LIMIT :limit

-- name: oldest_aborted
SELECT sequence FROM operation_log WHERE status IN ('dead', 'aborted') AND status = 'aborted' AND sequence > :at ORDER BY sequence LIMIT :limit

-- name: newest_done
SELECT sequence FROM operation_log WHERE status = 'done' AND destination_kind IN ('dm', 'topic') AND sequence < :at ORDER BY sequence DESC LIMIT :limit

-- name: oldest_done
SELECT sequence FROM operation_log WHERE status = 'done' AND destination_kind IN ('dm', 'topic') AND sequence > :at ORDER BY sequence LIMIT :limit

-- name: newest_to
-- Two indexes have what goes to one destination: one without what was given up, and one of that alone.
SELECT sequence FROM (
    SELECT sequence FROM (
        SELECT sequence FROM operation_log
        WHERE status IN ('pending', 'inflight', 'done') AND destination_kind = :kind AND destination_ref = :ref
          AND (:status IS NULL OR status = :status OR status = :or_status) AND sequence < :at
        ORDER BY sequence DESC LIMIT :limit
    ) AS alive
    UNION ALL
    SELECT sequence FROM (
        SELECT sequence FROM operation_log
        WHERE status IN ('dead', 'aborted') AND destination_kind = :kind AND destination_ref = :ref
          AND (:status IS NULL OR status = :status) AND sequence < :at
        ORDER BY sequence DESC LIMIT :limit
    ) AS given_up
) AS found
ORDER BY sequence DESC LIMIT :limit

-- name: oldest_to
SELECT sequence FROM (
    SELECT sequence FROM (
        SELECT sequence FROM operation_log
        WHERE status IN ('pending', 'inflight', 'done') AND destination_kind = :kind AND destination_ref = :ref
          AND (:status IS NULL OR status = :status OR status = :or_status) AND sequence > :at
        ORDER BY sequence LIMIT :limit
    ) AS alive
    UNION ALL
    SELECT sequence FROM (
        SELECT sequence FROM operation_log
        WHERE status IN ('dead', 'aborted') AND destination_kind = :kind AND destination_ref = :ref
          AND (:status IS NULL OR status = :status) AND sequence > :at
        ORDER BY sequence LIMIT :limit
    ) AS given_up
) AS found
ORDER BY sequence LIMIT :limit

-- name: messages
-- Without what people wrote, and without the event: they are shown where one message is.
SELECT inbox.arrival, inbox.id, inbox.client_message_id, inbox.sender, inbox.sender_name, inbox.topic, inbox.status, inbox.priority,
       inbox.received_at, inbox.was_stored, inbox.replayed, inbox.applied_at, inbox.parked_at, inbox.handler_attempts,
       length(inbox.body)
FROM wanted JOIN inbox ON inbox.arrival = wanted.arrival

-- name: newest_arrived
SELECT arrival FROM inbox WHERE arrival < :at ORDER BY arrival DESC LIMIT :limit

-- name: oldest_arrived
SELECT arrival FROM inbox WHERE arrival > :at ORDER BY arrival LIMIT :limit

-- name: newest_unapplied
SELECT arrival FROM inbox WHERE applied_at IS NULL AND parked_at IS NULL AND replayed = 0 AND arrival < :at ORDER BY arrival DESC LIMIT :limit

-- name: oldest_unapplied
SELECT arrival FROM inbox WHERE applied_at IS NULL AND parked_at IS NULL AND replayed = 0 AND arrival > :at ORDER BY arrival LIMIT :limit

-- name: newest_parked
SELECT arrival FROM inbox WHERE parked_at IS NOT NULL AND applied_at IS NULL AND arrival < :at ORDER BY arrival DESC LIMIT :limit

-- name: oldest_parked
SELECT arrival FROM inbox WHERE parked_at IS NOT NULL AND applied_at IS NULL AND arrival > :at ORDER BY arrival LIMIT :limit

-- name: newest_from
SELECT arrival FROM inbox WHERE sender = :sender AND arrival < :at ORDER BY arrival DESC LIMIT :limit

-- name: oldest_from
SELECT arrival FROM inbox WHERE sender = :sender AND arrival > :at ORDER BY arrival LIMIT :limit

-- name: newest_topic
SELECT arrival FROM inbox WHERE topic IS NOT NULL AND topic = :topic AND arrival < :at ORDER BY arrival DESC LIMIT :limit

-- name: oldest_topic
SELECT arrival FROM inbox WHERE topic IS NOT NULL AND topic = :topic AND arrival > :at ORDER BY arrival LIMIT :limit

-- name: funnel
-- Of the latest messages, how many the relay has, how many somebody has receipted, how many were given up.
SELECT count(*), sum(CASE WHEN status = 'done' THEN 1 ELSE 0 END),
       sum(CASE WHEN EXISTS (SELECT 1 FROM send_receipt WHERE send_receipt.sequence = latest.sequence) THEN 1 ELSE 0 END),
       sum(CASE WHEN status = 'dead' THEN 1 ELSE 0 END), min(enqueued_at)
FROM (
    SELECT sequence, status, enqueued_at FROM operation_log WHERE destination_kind IN ('dm', 'topic') ORDER BY sequence DESC LIMIT :limit
) AS latest

-- name: lately
SELECT seq, at, kind, message_id, client_message_id, sender, recipient, destination_kind, destination_ref, reason
FROM history ORDER BY seq DESC LIMIT :limit
