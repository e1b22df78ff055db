-- name: close
-- Compare-and-set: a row closes once.
UPDATE delivery SET state = :state, closed_at = :now
WHERE mesh = :mesh AND member = :member AND seq = :seq AND state = 'open'

-- name: take_from_queue
UPDATE member SET queue_count = queue_count - :count WHERE mesh = :mesh AND member = :member

-- name: expired_of_member
SELECT mesh, member, seq, message_id FROM delivery
WHERE mesh = :mesh AND member = :member AND state = 'open' AND expires_at <= :now
ORDER BY seq
LIMIT :limit

-- name: expired
SELECT mesh, member, seq, message_id FROM delivery
WHERE state = 'open' AND expires_at <= :now
ORDER BY expires_at, seq
LIMIT :limit

-- name: open_of_member
SELECT mesh, member, seq, message_id FROM delivery
WHERE mesh = :mesh AND member = :member AND state = 'open'
ORDER BY seq
