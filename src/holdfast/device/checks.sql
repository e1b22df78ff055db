-- name: device_has_one_epoch
-- A device has exactly one current epoch.
SELECT count(*) FROM device HAVING count(*) <> 1

-- name: only_delivered_entries_lose_their_blob
-- A blob is dropped only once the relay has confirmed it.
SELECT sequence, status FROM operation_log WHERE blob IS NULL AND status <> 'done'

-- name: every_enqueued_entry_is_in_the_log
-- What the history says was enqueued is in the operation log.
SELECT entry.seq, entry.sequence
FROM history AS entry
LEFT JOIN operation_log AS operation ON operation.sequence = entry.sequence
WHERE entry.kind = 'enqueued'
  AND (operation.sequence IS NULL OR operation.client_message_id <> entry.client_message_id)

-- name: every_log_entry_was_enqueued_once
-- What is in the operation log was enqueued exactly once, as far back as the history goes.
SELECT operation.sequence, count(entry.seq)
FROM operation_log AS operation
LEFT JOIN history AS entry ON entry.kind = 'enqueued' AND entry.sequence = operation.sequence
WHERE (SELECT anchor_seq FROM history_head) = 0
GROUP BY operation.sequence
HAVING count(entry.seq) <> 1

-- name: every_relayed_entry_is_delivered
-- What the history says the relay confirmed is marked so in the operation log.
SELECT entry.seq, entry.sequence
FROM history AS entry
LEFT JOIN operation_log AS operation ON operation.sequence = entry.sequence
WHERE entry.kind = 'relayed' AND (operation.status IS NULL OR operation.status <> 'done')

-- name: every_delivered_entry_was_relayed_once
-- What the operation log calls delivered was confirmed exactly once, as far back as the history goes.
SELECT operation.sequence, count(entry.seq)
FROM operation_log AS operation
LEFT JOIN history AS entry ON entry.kind = 'relayed' AND entry.sequence = operation.sequence
WHERE operation.status = 'done' AND (SELECT anchor_seq FROM history_head) = 0
GROUP BY operation.sequence
HAVING count(entry.seq) <> 1

-- name: the_epoch_is_the_one_that_was_minted_last
-- The device's epoch is that of what it enqueued last: it changes only together with an entry that says so.
SELECT device.epoch, entry.epoch
FROM device
JOIN history AS entry ON entry.seq = (SELECT max(seq) FROM history WHERE kind IN ('enqueued', 'restored') AND epoch IS NOT NULL)
WHERE device.epoch <> entry.epoch

-- name: what_was_given_up_is_in_the_history
-- An entry is dead or aborted only if the history says so: nothing leaves the outbox in silence.
SELECT operation.sequence, operation.status
FROM operation_log AS operation
LEFT JOIN history AS entry ON entry.kind = operation.status AND entry.sequence = operation.sequence
WHERE operation.status IN ('dead', 'aborted') AND entry.seq IS NULL AND (SELECT anchor_seq FROM history_head) = 0

-- name: blobs_have_the_size_that_was_enqueued
-- A blob is as long as the history says it was.
SELECT operation.sequence, length(operation.blob), entry.size
FROM operation_log AS operation
JOIN history AS entry ON entry.kind = 'enqueued' AND entry.sequence = operation.sequence
WHERE operation.blob IS NOT NULL AND length(operation.blob) <> entry.size

-- name: entries_were_enqueued_when_the_history_says
-- An entry's time of enqueueing is never later than the history's.
SELECT operation.sequence, operation.enqueued_at, entry.at
FROM operation_log AS operation
JOIN history AS entry ON entry.kind = 'enqueued' AND entry.sequence = operation.sequence
WHERE operation.enqueued_at > entry.at

-- name: what_is_in_flight_has_its_event
-- What may be on its way is on disk as it was signed.
SELECT sequence FROM operation_log WHERE status = 'inflight' AND event IS NULL

-- name: what_was_superseded_has_its_successor
-- An entry that gave way to another names one that exists.
SELECT operation.sequence, operation.superseded_by
FROM operation_log AS operation
LEFT JOIN operation_log AS successor ON successor.id = operation.superseded_by
WHERE operation.superseded_by IS NOT NULL AND successor.sequence IS NULL
