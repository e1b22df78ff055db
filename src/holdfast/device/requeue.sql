-- name: content
SELECT blob, request, request_fingerprint FROM operation_log WHERE sequence = :sequence

-- name: retire
UPDATE operation_log SET status = :status, aborted_at = :now, aborted_by = :aborted_by
WHERE sequence = :sequence AND status = :was

-- name: name_successor
UPDATE operation_log SET superseded_by = :superseded_by WHERE sequence = :sequence

-- name: older_than_epoch
-- Whether the log was restored, copied or recovered, and so took a new epoch, since this operation was enqueued or, if that was
-- earlier, scheduled. A history that began anew does not tell.
SELECT 1 FROM device
WHERE NOT EXISTS (
    SELECT 1 FROM history AS entry
    WHERE entry.client_message_id = :client_message_id AND entry.kind = 'enqueued' AND entry.epoch = device.epoch
) OR EXISTS (
    SELECT 1 FROM scheduled_send
    WHERE scheduled_send.client_message_id = :client_message_id AND scheduled_send.epoch IS DISTINCT FROM device.epoch
)

-- name: receivers
-- Who has signed a receipt for this message, by name, if its member is known here, and what the receipt says.
SELECT coalesce(directory_member.name, send_receipt.recipient), send_receipt.status
FROM send_receipt
LEFT JOIN directory_member ON directory_member.member = send_receipt.recipient
WHERE send_receipt.sequence = :sequence
ORDER BY 1
