-- name: kept
-- Everything that others signed, by event id, so that a long walk can go on where it ended.
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
-- What the retention has taken says nothing any more, and rows from before there were digests never did.
SELECT arrival, object_id, meta, body, digest
FROM inbox
WHERE arrival > :after AND digest IS NOT NULL AND body IS NOT NULL AND object_id IS NOT NULL
ORDER BY arrival
LIMIT :limit
