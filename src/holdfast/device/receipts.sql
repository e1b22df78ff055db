-- name: is_known
SELECT event_id FROM receipt WHERE event_id = :event_id

-- name: sent_as
SELECT sequence, client_message_id, destination_kind, destination_ref, event_id, epoch
FROM operation_log
WHERE event_id = :event_id

-- name: sent_under
SELECT sequence, client_message_id, destination_kind, destination_ref, event_id, epoch
FROM operation_log
WHERE client_message_id = :client_message_id

-- name: keep_receipt
INSERT INTO receipt (event_id, event, message_id, sender, received_at)
VALUES (:event_id, :event, :message_id, :sender, :now)

-- name: keep_line
-- A recipient receipts a message once; a second receipt changes nothing.
INSERT INTO send_receipt (sequence, recipient, status, was_stored, receipt_event_id, received_at)
VALUES (:sequence, :recipient, :status, :was_stored, :receipt_event_id, :now)
ON CONFLICT (sequence, recipient) DO NOTHING

-- name: keep_fate
INSERT INTO fate (sequence, recipient, kind, at, was_stored, reason, log_id, history_id)
VALUES (:sequence, :recipient, :kind, :at, :was_stored, :reason, :log_id, :history_id)
ON CONFLICT (sequence, recipient, kind) DO NOTHING

-- name: cursor
SELECT log_id, seq FROM cursor WHERE name = :name

-- name: move_cursor
-- Within one log it moves forward only: an answer that comes late must not move it back.
INSERT INTO cursor (name, log_id, seq, moved_at) VALUES (:name, :log_id, :seq, :now)
ON CONFLICT (name) DO UPDATE SET log_id = excluded.log_id, seq = excluded.seq, moved_at = excluded.moved_at
WHERE cursor.log_id <> excluded.log_id OR cursor.seq < excluded.seq
