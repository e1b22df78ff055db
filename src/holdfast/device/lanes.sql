-- name: next_lane
-- The next destination with something to send, found by a jump in the index instead of a scan.
SELECT destination_kind, destination_ref FROM operation_log
WHERE status IN ('pending', 'inflight')
  AND (destination_kind, destination_ref) > (:destination_kind, :destination_ref)
ORDER BY destination_kind, destination_ref
LIMIT 1

-- name: lanes_after
-- The destinations of rows after a sequence.
SELECT DISTINCT destination_kind, destination_ref FROM operation_log
WHERE sequence > :after AND status IN ('pending', 'inflight') AND destination_kind IS NOT NULL

-- name: line
-- The first rows of a lane, with the columns that the choice of a batch needs.
SELECT sequence, priority, next_attempt_at, status, last_error FROM operation_log
WHERE destination_kind = :destination_kind AND destination_ref = :destination_ref AND status IN ('pending', 'inflight')
ORDER BY sequence
LIMIT :limit

-- name: due_again
-- Rows that got no answer are due as soon as the relay is connected again.
UPDATE operation_log SET next_attempt_at = :now WHERE sequence = :sequence AND status = 'pending'

-- name: note
-- Why a row that was not offered waits.
UPDATE operation_log SET last_error = :last_error WHERE sequence = :sequence AND status = 'pending'
