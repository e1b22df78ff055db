-- name: told
-- A received message may have the same id, but its entries are of other kinds. The last entries are kept, as they say most.
SELECT kind, at, reason, detail
FROM history
WHERE client_message_id = :client_message_id AND kind IN ('enqueued', 'attempted', 'relayed', 'dead', 'aborted')
ORDER BY seq DESC
LIMIT :limit

-- name: receipts
SELECT recipient, status, was_stored, received_at FROM send_receipt WHERE sequence = :sequence ORDER BY recipient LIMIT :limit

-- name: fates
SELECT recipient, kind, at, was_stored, reason FROM fate WHERE sequence = :sequence ORDER BY recipient, at LIMIT :limit
