-- name: next_lane
-- The first destination after another to which something is still to be sent: the index is jumped through, not read.
SELECT destination_kind, destination_ref FROM operation_log
WHERE status IN ('pending', 'inflight')
  AND (destination_kind, destination_ref) > (:destination_kind, :destination_ref)
ORDER BY destination_kind, destination_ref
LIMIT 1

-- name: lanes_after
-- Where what was written after a sequence goes.
SELECT DISTINCT destination_kind, destination_ref FROM operation_log
WHERE sequence > :after AND status IN ('pending', 'inflight') AND destination_kind IS NOT NULL

-- name: line
-- The first rows of a lane, as far as the choice needs to know them.
SELECT sequence, priority, next_attempt_at, status, last_error FROM operation_log
WHERE destination_kind = :destination_kind AND destination_ref = :destination_ref AND status IN ('pending', 'inflight')
ORDER BY sequence
LIMIT :limit

-- name: due_again
-- What got no answer is due as soon as somebody can answer.
UPDATE operation_log SET next_attempt_at = :now WHERE sequence = :sequence AND status = 'pending'

-- name: note
-- Why a row waits that has not been offered yet.
UPDATE operation_log SET last_error = :last_error WHERE sequence = :sequence AND status = 'pending'
