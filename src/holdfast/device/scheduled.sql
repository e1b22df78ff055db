-- name: keep
INSERT INTO scheduled_send
    (client_message_id, request_fingerprint, request, destination_kind, destination_ref, object_id, meta, body, priority,
     reply_to, mentions, expires_at, accepted_at, not_before)
VALUES (:client_message_id, :request_fingerprint, :request, :destination_kind, :destination_ref, :object_id, :meta, :body,
        :priority, :reply_to, :mentions, :expires_at, :accepted_at, :not_before)

-- name: due
SELECT client_message_id, request_fingerprint, request, destination_kind, destination_ref, object_id, meta, body, priority,
       reply_to, mentions, expires_at
FROM scheduled_send
WHERE released_at IS NULL AND not_before <= :now
ORDER BY not_before, accepted_at, client_message_id
LIMIT :limit

-- name: release
-- What it held is in the log now; when it was asked for stays here.
UPDATE scheduled_send SET released_at = :now, sequence = :sequence, body = NULL, meta = NULL
WHERE client_message_id = :client_message_id AND released_at IS NULL

-- name: next_release_at
SELECT min(not_before) FROM scheduled_send WHERE released_at IS NULL

-- name: waiting
SELECT client_message_id, destination_kind, destination_ref, priority, accepted_at, not_before
FROM scheduled_send
WHERE released_at IS NULL AND client_message_id > :after
ORDER BY client_message_id
LIMIT :limit
