-- name: content
SELECT blob, request, request_fingerprint FROM operation_log WHERE sequence = :sequence

-- name: retire
UPDATE operation_log SET status = :status, aborted_at = :now, aborted_by = :aborted_by
WHERE sequence = :sequence AND status = :was

-- name: name_successor
UPDATE operation_log SET superseded_by = :superseded_by WHERE sequence = :sequence

-- name: older_than_epoch
-- Whether this device became another sender, its log restored or copied, since it was asked for this operation.
SELECT 1 FROM history AS entry JOIN device ON device.epoch <> entry.epoch
WHERE entry.client_message_id = :client_message_id AND entry.kind = 'enqueued'
