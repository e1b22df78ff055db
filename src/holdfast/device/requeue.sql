-- name: content
SELECT blob, request, request_fingerprint FROM operation_log WHERE sequence = :sequence

-- name: retire
UPDATE operation_log SET status = :status, aborted_at = :now, aborted_by = :aborted_by
WHERE sequence = :sequence AND status = :was

-- name: name_successor
UPDATE operation_log SET superseded_by = :superseded_by WHERE sequence = :sequence
