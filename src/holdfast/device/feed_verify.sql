-- name: documents
SELECT DISTINCT d FROM snapshot WHERE d > :after ORDER BY d LIMIT :limit

-- name: versions
SELECT snapshot.d, snapshot.event_id, snapshot.o, snapshot.clock, snapshot.status, snapshot.superseded_by, snapshot.event
FROM wanted
JOIN snapshot ON snapshot.d = wanted.d
ORDER BY snapshot.d, snapshot.number

-- name: raise
UPDATE snapshot SET status = 'current', superseded_by = NULL WHERE event_id = :event_id AND status = 'superseded'
