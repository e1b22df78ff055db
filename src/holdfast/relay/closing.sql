-- name: close
-- Compare-and-set: a row closes once. One statement for all rows: each is a round trip to a server, while others wait.
UPDATE delivery SET state = wanted.state, closed_at = wanted.closed_at, was_stored = CAST(wanted.was_stored AS INTEGER)
FROM wanted
WHERE delivery.mesh = wanted.mesh AND delivery.member = wanted.member AND delivery.seq = wanted.seq
  AND delivery.state = 'open'
RETURNING delivery.seq

-- name: take_from_queue
UPDATE member SET queue_count = queue_count - :count WHERE mesh = :mesh AND member = :member

-- name: expired_messages_of_member
-- Without receipts, which take no room. The message may have been deleted by hand: its delivery expires all the same.
SELECT delivery.mesh, delivery.member, delivery.seq, delivery.message_id, delivery.is_receipt,
       message.sender, message.client_message_id, message.event_id
FROM delivery INDEXED BY delivery_queue
LEFT JOIN message ON message.seq = delivery.seq
WHERE delivery.mesh = :mesh AND delivery.member = :member AND delivery.state = 'open' AND delivery.is_receipt = 0
  AND delivery.expires_at <= :now
ORDER BY delivery.seq
LIMIT :limit

-- name: due
-- The members in whose queues something may have expired, the longest due first.
SELECT mesh, member FROM member WHERE expires_from <= :now ORDER BY expires_from, mesh, member LIMIT :limit

-- name: expired_of_member
SELECT delivery.mesh, delivery.member, delivery.seq, delivery.message_id, delivery.is_receipt,
       message.sender, message.client_message_id, message.event_id
FROM delivery INDEXED BY delivery_queue
LEFT JOIN message ON message.seq = delivery.seq
WHERE delivery.mesh = :mesh AND delivery.member = :member AND delivery.state = 'open' AND delivery.expires_at <= :now
ORDER BY delivery.seq
LIMIT :limit

-- name: note_next_expiry
UPDATE member SET expires_from = (
    SELECT min(delivery.expires_at) FROM delivery INDEXED BY delivery_queue
    WHERE delivery.mesh = :mesh AND delivery.member = :member AND delivery.state = 'open'
)
WHERE mesh = :mesh AND member = :member

-- name: open_of_member
SELECT delivery.mesh, delivery.member, delivery.seq, delivery.message_id, delivery.is_receipt,
       message.sender, message.client_message_id, message.event_id
FROM delivery INDEXED BY delivery_queue
LEFT JOIN message ON message.seq = delivery.seq
WHERE delivery.mesh = :mesh AND delivery.member = :member AND delivery.state = 'open'
ORDER BY delivery.seq

-- name: open_of_message
SELECT delivery.mesh, delivery.member, delivery.seq, delivery.message_id, delivery.is_receipt,
       message.sender, message.client_message_id, message.event_id
FROM message
JOIN delivery ON delivery.seq = message.seq
WHERE message.message_id = :message_id AND delivery.state = 'open'
ORDER BY delivery.member

-- name: rows_of_member
-- The wanted positions that are rows of this member's queue, open or closed.
SELECT delivery.mesh, delivery.member, delivery.seq, delivery.message_id, delivery.is_receipt,
       message.sender, message.client_message_id, message.event_id, delivery.state
FROM wanted
JOIN delivery ON delivery.mesh = wanted.mesh AND delivery.member = wanted.member AND delivery.seq = wanted.seq
LEFT JOIN message ON message.seq = delivery.seq
ORDER BY delivery.seq
