-- name: called
-- An id is one request's for ever, whether that was sent, was given up, or still waits for its time or was cancelled in it.
SELECT request_fingerprint, status, broker_message_id, history_id, last_error
FROM operation_log
WHERE client_message_id = :client_message_id
UNION ALL
SELECT request_fingerprint, CASE WHEN cancelled_at IS NULL THEN 'pending' ELSE 'aborted' END, NULL, NULL, NULL
FROM scheduled_send
WHERE client_message_id = :client_message_id AND released_at IS NULL
