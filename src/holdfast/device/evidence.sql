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
