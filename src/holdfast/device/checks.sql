-- name: device_has_one_epoch
-- A device has exactly one current epoch.
SELECT count(*) FROM device HAVING count(*) <> 1

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
-- What the history says the relay confirmed, and has not lost since, is marked so in the operation log.
SELECT entry.sequence, operation.status
FROM history AS entry
LEFT JOIN operation_log AS operation ON operation.sequence = entry.sequence
WHERE entry.kind = 'relayed' OR (entry.kind IN ('attempted', 'dead') AND entry.reason = 'rolled_back')
GROUP BY entry.sequence, operation.status, operation.broker_message_id
HAVING sum(CASE entry.kind WHEN 'relayed' THEN 1 ELSE -1 END) > 0
   AND (operation.status IS NULL
     OR (operation.status <> 'done' AND NOT (operation.status IN ('dead', 'aborted') AND operation.broker_message_id IS NOT NULL)))

-- name: every_delivered_entry_was_relayed_once
-- What the operation log calls delivered was confirmed exactly once more than lost again, as far back as the history goes.
SELECT operation.sequence, count(entry.seq)
FROM operation_log AS operation
LEFT JOIN history AS entry
    ON entry.sequence = operation.sequence
   AND (entry.kind = 'relayed' OR (entry.kind = 'attempted' AND entry.reason = 'rolled_back'))
WHERE operation.status = 'done' AND (SELECT anchor_seq FROM history_head) = 0
GROUP BY operation.sequence
HAVING coalesce(sum(CASE entry.kind WHEN 'relayed' THEN 1 WHEN 'attempted' THEN -1 END), 0) <> 1

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

-- name: what_was_signed_has_its_name
-- A message whose event was made is known by the event's id and epoch: else no receipt would find it.
SELECT sequence FROM operation_log
WHERE request IS NOT NULL AND event IS NOT NULL AND (event_id IS NULL OR epoch IS NULL)

-- name: what_the_relay_lost_is_offered
-- What was rolled back and not confirmed again carries none of the relay's ids.
SELECT sequence FROM operation_log
WHERE status IN ('pending', 'inflight') AND (broker_message_id IS NOT NULL OR history_id IS NOT NULL OR log_id IS NOT NULL)

-- name: every_superseded_entry_has_one_successor_of_its_own
-- No entry takes the place of two others, and none the place of itself or of a later one.
SELECT successor.sequence, count(*)
FROM operation_log AS operation
JOIN operation_log AS successor ON successor.id = operation.superseded_by
WHERE operation.aborted_by <> 'device'
GROUP BY successor.sequence
HAVING count(*) > 1 OR max(operation.sequence) >= successor.sequence

-- name: scheduled_sends_are_released_once
-- A scheduled send is in the operation log under its id once it was released, and not before.
SELECT scheduled.client_message_id, scheduled.sequence, operation.sequence
FROM scheduled_send AS scheduled
LEFT JOIN operation_log AS operation ON operation.client_message_id = scheduled.client_message_id
WHERE coalesce(scheduled.sequence, -1) <> coalesce(operation.sequence, -1)

-- name: operations_are_counted
-- The number of operations of each status is the one that is kept.
SELECT counted.status, counted.rows, count(operation.sequence)
FROM operation_count AS counted
LEFT JOIN operation_log AS operation ON operation.status = counted.status
GROUP BY counted.status, counted.rows
HAVING counted.rows <> count(operation.sequence)

-- name: every_status_is_counted
-- There is a number for every status that an operation can have.
SELECT count(*) FROM operation_count HAVING count(*) <> 5

-- name: what_was_cancelled_is_in_the_history
-- A scheduled send was cancelled iff the history says so once, as far back as that goes.
SELECT scheduled.client_message_id, count(entry.seq)
FROM scheduled_send AS scheduled
LEFT JOIN history AS entry
    ON entry.kind = 'aborted' AND entry.sequence IS NULL AND entry.client_message_id = scheduled.client_message_id
WHERE (SELECT anchor_seq FROM history_head) = 0
GROUP BY scheduled.client_message_id, scheduled.cancelled_at
HAVING count(entry.seq) <> CASE WHEN scheduled.cancelled_at IS NULL THEN 0 ELSE 1 END

-- name: nothing_is_released_early
-- A scheduled send is not released before its time.
SELECT client_message_id FROM scheduled_send WHERE released_at < not_before

-- name: every_message_was_stored_once
-- A message in the inbox was told to the history exactly once, as far back as that goes.
SELECT message.arrival, count(entry.seq)
FROM inbox AS message
LEFT JOIN history AS entry
    ON entry.kind = 'stored' AND entry.event_id = message.event_id AND entry.reason IN ('stored', 'unreadable')
WHERE (SELECT anchor_seq FROM history_head) = 0
GROUP BY message.arrival
HAVING count(entry.seq) <> 1

-- name: every_duplicate_was_told_once
-- An event under an id that another message has was told to the history exactly once, as far back as that goes.
SELECT duplicate.event_id, count(entry.seq)
FROM inbox_duplicate AS duplicate
LEFT JOIN history AS entry
    ON entry.kind = 'stored' AND entry.event_id = duplicate.event_id AND entry.reason = 'duplicate'
WHERE (SELECT anchor_seq FROM history_head) = 0
GROUP BY duplicate.event_id
HAVING count(entry.seq) <> 1

-- name: every_stored_entry_is_in_the_inbox
-- What the history says was stored is in the inbox, where there is one at all.
SELECT entry.seq, entry.event_id
FROM history AS entry
WHERE entry.kind = 'stored' AND EXISTS (SELECT 1 FROM inbox)
  AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.event_id = entry.event_id)
  AND NOT EXISTS (SELECT 1 FROM inbox_duplicate WHERE inbox_duplicate.event_id = entry.event_id)

-- name: every_receipt_owed_is_in_the_log
-- For every event that arrived, a receipt to its sender is in the operation log.
SELECT arrived.event_id, arrived.receipt_sequence
FROM (
    SELECT event_id, sender, receipt_sequence FROM inbox
    UNION ALL
    SELECT event_id, sender, receipt_sequence FROM inbox_duplicate
) AS arrived
LEFT JOIN operation_log AS operation
    ON operation.sequence = arrived.receipt_sequence
   AND operation.destination_kind = 'receipt' AND operation.destination_ref = arrived.sender
WHERE operation.sequence IS NULL

-- name: arrivals_have_no_holes
-- Messages are numbered in the order of arrival without a hole: none was taken away.
SELECT max(arrival), count(*) FROM inbox HAVING max(arrival) <> count(*) OR min(arrival) <> 1

-- name: every_sender_has_its_epochs
-- The epoch of every message that arrived is known, so that a new one shows.
SELECT message.arrival
FROM inbox AS message
LEFT JOIN sender_epoch AS met ON met.sender = message.sender AND met.epoch = message.epoch
WHERE met.sender IS NULL

-- name: what_is_readable_has_its_content
-- A message that could be opened has a body, until the retention takes it.
SELECT arrival FROM inbox WHERE status = 'stored' AND pruned_at IS NULL AND (body IS NULL OR object_id IS NULL)

-- name: what_was_applied_is_in_the_history
-- A message is applied, parked or opened iff the history says so once, as far back as that goes.
SELECT message.arrival, told.kind, count(entry.seq)
FROM inbox AS message
CROSS JOIN (SELECT 'applied' AS kind UNION ALL SELECT 'parked' UNION ALL SELECT 'opened') AS told
LEFT JOIN history AS entry ON entry.kind = told.kind AND entry.event_id = message.event_id
WHERE (SELECT anchor_seq FROM history_head) = 0
GROUP BY message.arrival, told.kind, message.applied_at, message.parked_at, message.opened_at
HAVING count(entry.seq) <> CASE told.kind
    WHEN 'applied' THEN CASE WHEN message.applied_at IS NULL THEN 0 ELSE 1 END
    WHEN 'parked' THEN CASE WHEN message.parked_at IS NULL THEN 0 ELSE 1 END
    ELSE CASE WHEN message.opened_at IS NULL THEN 0 ELSE 1 END
END

-- name: every_mention_is_of_a_message
-- A mention belongs to a message that arrived.
SELECT mention.member, mention.arrival
FROM inbox_mention AS mention
LEFT JOIN inbox AS message ON message.arrival = mention.arrival
WHERE message.arrival IS NULL

-- name: every_receipt_is_about_a_send
-- What a recipient said of a send is about a send there is, and stands in a receipt that was kept as it was signed.
SELECT line.sequence, line.recipient
FROM send_receipt AS line
LEFT JOIN operation_log AS operation ON operation.sequence = line.sequence
LEFT JOIN receipt ON receipt.event_id = line.receipt_event_id AND receipt.sender = line.recipient
WHERE operation.sequence IS NULL OR receipt.event_id IS NULL

-- name: every_receipt_was_told_once
-- What a recipient said of a send was told to the history exactly once, as far back as that goes.
SELECT line.sequence, line.recipient, count(entry.seq)
FROM send_receipt AS line
LEFT JOIN history AS entry
    ON entry.kind = 'receipt' AND entry.sequence = line.sequence AND entry.recipient = line.recipient
   AND entry.reason = line.status AND entry.detail = line.receipt_event_id
WHERE (SELECT anchor_seq FROM history_head) = 0
GROUP BY line.sequence, line.recipient
HAVING count(entry.seq) <> 1

-- name: every_fate_is_about_a_send
-- What the relay said of a send is about a send there is.
SELECT fate.sequence, fate.recipient
FROM fate
LEFT JOIN operation_log AS operation ON operation.sequence = fate.sequence
WHERE operation.sequence IS NULL

-- name: every_hook_event_ends_once_and_after_it_came
-- A hook event that has ended has ended once, and its arrival stands before that, as far back as the history goes.
SELECT entry.event_id, count(*)
FROM history AS entry
WHERE entry.kind IN ('hook_received', 'hook_done', 'hook_dead', 'hook_coalesced')
  AND (SELECT anchor_seq FROM history_head) = 0
GROUP BY entry.event_id
HAVING count(*) > 2 OR min(CASE entry.kind WHEN 'hook_received' THEN entry.seq END) IS NULL
    OR min(CASE entry.kind WHEN 'hook_received' THEN entry.seq END) > min(entry.seq)
