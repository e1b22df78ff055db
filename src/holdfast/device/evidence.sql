-- name: kept
-- All kept events of others, by event id, so that a long walk can go on where a page ended.
SELECT kept.event_id, kept.event
FROM (
    SELECT event_id, event FROM inbox
    UNION ALL
    SELECT event_id, event FROM inbox_duplicate
    UNION ALL
    SELECT event_id, event FROM receipt
) AS kept
WHERE kept.event IS NOT NULL AND kept.event_id > :after
ORDER BY kept.event_id
LIMIT :limit

-- name: contents
-- Without pruned messages, whose content is gone, and without rows that are older than digests.
SELECT arrival, object_id, meta, body, digest
FROM inbox
WHERE arrival > :after AND digest IS NOT NULL AND body IS NOT NULL AND object_id IS NOT NULL
ORDER BY arrival
LIMIT :limit
