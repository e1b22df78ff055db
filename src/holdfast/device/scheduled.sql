-- name: keep
INSERT INTO scheduled_send
    (client_message_id, request_fingerprint, request, destination_kind, destination_ref, object_id, meta, body, priority,
     reply_to, mentions, expires_at, accepted_at, not_before, epoch)
VALUES (:client_message_id, :request_fingerprint, :request, :destination_kind, :destination_ref, :object_id, :meta, :body,
        :priority, :reply_to, :mentions, :expires_at, :accepted_at, :not_before, :epoch)

-- name: due
SELECT client_message_id, request_fingerprint, request, destination_kind, destination_ref, object_id, meta, body, priority,
       reply_to, mentions, expires_at
FROM scheduled_send
WHERE released_at IS NULL AND cancelled_at IS NULL AND not_before <= :now
ORDER BY not_before, accepted_at, client_message_id
LIMIT :limit

-- name: release
-- The content is in the log now; the time of the request stays here.
UPDATE scheduled_send SET released_at = :now, sequence = :sequence, body = NULL, meta = NULL
WHERE client_message_id = :client_message_id AND released_at IS NULL AND cancelled_at IS NULL

-- name: cancel
-- The content goes; the id stays used for ever.
UPDATE scheduled_send SET cancelled_at = :now, body = NULL, meta = NULL
WHERE client_message_id = :client_message_id AND released_at IS NULL AND cancelled_at IS NULL

-- name: next_release_at
SELECT min(not_before) FROM scheduled_send WHERE released_at IS NULL AND cancelled_at IS NULL

-- name: count
SELECT count(*) FROM scheduled_send WHERE released_at IS NULL AND cancelled_at IS NULL

-- name: find
SELECT client_message_id, destination_kind, destination_ref, priority, accepted_at, not_before, sequence, cancelled_at
FROM scheduled_send
WHERE client_message_id = :client_message_id

-- name: waiting
-- In the order of their times. A page begins after a row, which keeps its place even if it was released meanwhile.
SELECT client_message_id, destination_kind, destination_ref, priority, accepted_at, not_before, sequence, cancelled_at
FROM scheduled_send
WHERE released_at IS NULL AND cancelled_at IS NULL
  AND (:after = '' OR (not_before, accepted_at, client_message_id) > (
      SELECT not_before, accepted_at, client_message_id FROM scheduled_send WHERE client_message_id = :after
  ))
  AND (:destination_kind IS NULL OR destination_kind = :destination_kind)
  AND (:destination_ref IS NULL OR destination_ref = :destination_ref)
ORDER BY not_before, accepted_at, client_message_id
LIMIT :limit
