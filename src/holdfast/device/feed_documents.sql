-- name: standing
-- The versions that a decision about a document depends on: current ones, and those given up as gone.
SELECT event_id, o, clock, status FROM snapshot WHERE d = :d AND status <> 'superseded' ORDER BY number

-- name: clocks
SELECT clock FROM snapshot WHERE d = :d

-- name: unsent
SELECT event_id FROM snapshot
WHERE is_own = 1 AND status = 'current' AND EXISTS (
    SELECT 1 FROM feed_relay
    WHERE NOT EXISTS (
        SELECT 1 FROM sighting
        WHERE sighting.relay = feed_relay.relay AND sighting.event_id = snapshot.event_id
          AND sighting.state IN ('there', 'dominated')
    )
)
ORDER BY number

-- name: known
SELECT wanted.event_id FROM wanted JOIN snapshot ON snapshot.event_id = wanted.event_id

-- name: twins
-- Other edits of a document with the same clock.
SELECT event, status FROM snapshot
WHERE d = :d AND clock = :clock AND status IN ('current', 'superseded') AND event_id <> :event_id

-- name: waiting_of_document
-- Versions of a document that wait for some relay: they may be trimmed here. The plus sign keeps SQLite from reading all that waits:
-- a document has few rows, and a relay that is away for long has very many.
SELECT blob FROM operation_log
WHERE object_id = :object_id AND +destination_kind = 'feed' AND status IN ('pending', 'inflight')

-- name: keep_snapshot
INSERT INTO snapshot (event_id, d, name, o, clock, created_at, known_at, is_own, status, event)
VALUES (:event_id, :d, :name, :o, :clock, :created_at, :now, :is_own, 'current', :event)

-- name: supersede
UPDATE snapshot SET status = 'superseded', superseded_by = :by WHERE event_id = :event_id

-- name: give_up
UPDATE snapshot SET status = 'gone' WHERE event_id = :event_id AND status = 'current'

-- name: trim
-- Only the last few superseded versions of a document are kept.
DELETE FROM snapshot
WHERE d = :d AND status = 'superseded' AND number NOT IN (
    SELECT number FROM snapshot WHERE d = :d AND status = 'superseded' ORDER BY number DESC LIMIT :kept
)
RETURNING event_id

-- name: forget_sightings
DELETE FROM sighting WHERE event_id = :event_id

-- name: try_again
-- A relay may accept what it refused before, now that the document has changed.
DELETE FROM sighting
WHERE state = 'refused' AND event_id IN (SELECT event_id FROM snapshot WHERE d = :d AND status = 'current')

-- name: tell_deletions
-- The relay that accepted the conflicting edit may have pruned the deletion, so the deletion is offered to it again.
DELETE FROM sighting
WHERE state = 'there' AND event_id IN (SELECT event_id FROM snapshot WHERE d = :d AND status = 'current' AND o = 'del')

-- name: documents
-- Documents with a known name, in the order of an index, so that a page costs in proportion to its rows. A version that cannot
-- be opened here has no name, but counts as a version.
SELECT named.d, named.name, count(*), sum(CASE version.o WHEN 'put' THEN 1 ELSE 0 END), max(version.known_at)
FROM snapshot AS named
JOIN snapshot AS version ON version.d = named.d AND version.status = 'current'
WHERE named.status = 'current' AND (named.name, named.d) > (:after_name, :after_d)
  AND named.number = (
      SELECT min(number) FROM snapshot WHERE d = named.d AND status = 'current' AND name IS NOT NULL
  )
GROUP BY named.name, named.d
HAVING sum(CASE version.o WHEN 'put' THEN 1 ELSE 0 END) > 0 OR :with_deleted = 1
ORDER BY named.name, named.d
LIMIT :limit

-- name: nameless_documents
-- Documents without a known name, which come first, by id.
SELECT d, name, count(*), sum(CASE o WHEN 'put' THEN 1 ELSE 0 END), max(known_at)
FROM snapshot
WHERE status = 'current' AND name IS NULL AND d > :after_d
  AND NOT EXISTS (
      SELECT 1 FROM snapshot AS named WHERE named.d = snapshot.d AND named.status = 'current' AND named.name IS NOT NULL
  )
GROUP BY d, name
HAVING sum(CASE o WHEN 'put' THEN 1 ELSE 0 END) > 0 OR :with_deleted = 1
ORDER BY d
LIMIT :limit

-- name: conflicting_documents
-- Conflicts are few among many documents: those with several versions are found in an index first.
SELECT d, max(name), count(*), sum(CASE o WHEN 'put' THEN 1 ELSE 0 END), max(known_at)
FROM snapshot
WHERE status = 'current'
  AND d IN (SELECT d FROM snapshot WHERE status = 'current' GROUP BY d HAVING count(*) > 1)
GROUP BY d
HAVING sum(CASE o WHEN 'put' THEN 1 ELSE 0 END) > 0
   AND (coalesce(max(name), ''), d) > (:after_name, :after_d)
ORDER BY coalesce(max(name), ''), d
LIMIT :limit

-- name: versions
SELECT number, event_id, d, o, clock, created_at, known_at, is_own, status, superseded_by, event FROM snapshot
WHERE d = :d
ORDER BY number DESC

-- name: document_of
SELECT d FROM snapshot WHERE event_id = :event_id

-- name: name_of
SELECT name FROM snapshot WHERE d = :d AND name IS NOT NULL ORDER BY number DESC LIMIT 1

-- name: names
SELECT name, status FROM snapshot WHERE d = :d ORDER BY number DESC

-- name: event_of
SELECT event, d FROM snapshot WHERE event_id = :event_id

-- name: sightings
SELECT sighting.relay, sighting.state FROM sighting WHERE event_id = :event_id ORDER BY sighting.relay

-- name: count_documents
SELECT count(*), coalesce(sum(CASE WHEN versions > 1 AND puts > 0 THEN 1 ELSE 0 END), 0), coalesce(sum(CASE WHEN puts = 0 THEN 1 ELSE 0 END), 0)
FROM (
    SELECT count(*) AS versions, sum(CASE o WHEN 'put' THEN 1 ELSE 0 END) AS puts
    FROM snapshot WHERE status = 'current' GROUP BY d
) AS document
