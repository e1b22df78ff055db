-- name: called
-- An id belongs to one request for ever, whether that was sent, given up, scheduled or cancelled.
SELECT wanted.client_message_id, operation_log.request_fingerprint, operation_log.status, operation_log.broker_message_id,
       operation_log.history_id, operation_log.last_error, successor.client_message_id
FROM wanted
JOIN operation_log ON operation_log.client_message_id = wanted.client_message_id
LEFT JOIN operation_log AS successor ON successor.id = operation_log.superseded_by
UNION ALL
SELECT wanted.client_message_id, scheduled_send.request_fingerprint,
       CASE WHEN scheduled_send.cancelled_at IS NULL THEN 'pending' ELSE 'aborted' END, NULL, NULL, NULL, NULL
FROM wanted
JOIN scheduled_send ON scheduled_send.client_message_id = wanted.client_message_id AND scheduled_send.released_at IS NULL
