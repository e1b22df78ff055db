-- name: min_seq
SELECT min_seq FROM feed

-- name: pruned_seq
-- The last position of an author that was pruned.
SELECT max(pruned_seq) FROM document WHERE author = :author AND pruned_seq IS NOT NULL

-- name: min_created_at
SELECT min(created_at) FROM snapshot WHERE event IS NOT NULL

-- name: any
SELECT 1 FROM snapshot WHERE author = :author LIMIT 1

-- name: changes
-- An author's accepted snapshots, in the order of the history; without payloads, because not all rows will match.
SELECT seq, event_id, author, kind, d, o, c, created_at, size, event IS NOT NULL FROM snapshot
WHERE author = :author AND seq > :after AND seq <= :until
ORDER BY seq
LIMIT :limit

-- name: changes_of_document
-- The positions first: the document's index has them all, so that nothing else of its author is read.
SELECT seq, event_id, author, kind, d, o, c, created_at, size, event IS NOT NULL FROM snapshot
WHERE seq IN (
    SELECT seq FROM snapshot
    WHERE author = :author AND d = :d AND seq > :after AND seq <= :until
    ORDER BY seq
    LIMIT :limit
)
ORDER BY seq

-- name: changes_of_all
SELECT seq, event_id, author, kind, d, o, c, created_at, size, event IS NOT NULL FROM snapshot
WHERE seq > :after AND seq <= :until
ORDER BY seq
LIMIT :limit

-- name: state
-- A page of the snapshots that were current at a position, in the order of dates: those that still are, and those superseded
-- since. Snapshots that were superseded before are not read, however many there are.
SELECT * FROM (
    SELECT seq, event_id, author, kind, d, o, c, created_at, size, event IS NOT NULL AS is_kept FROM snapshot
    WHERE author = :author AND superseded_seq IS NULL AND seq <= :at
      AND (created_at, event_id) > (:after_created_at, :after_event_id)
    ORDER BY created_at, event_id
    LIMIT :limit
) AS still
UNION ALL
SELECT seq, event_id, author, kind, d, o, c, created_at, size, event IS NOT NULL AS is_kept FROM snapshot
WHERE seq IN (
    SELECT seq FROM snapshot
    WHERE author = :author AND superseded_seq > :at AND (created_at, event_id) > (:after_created_at, :after_event_id)
) AND seq <= :at
ORDER BY created_at, event_id
LIMIT :limit

-- name: state_of_document
SELECT seq, event_id, author, kind, d, o, c, created_at, size, event IS NOT NULL FROM snapshot
WHERE seq IN (SELECT seq FROM snapshot WHERE author = :author AND d = :d AND seq <= :at)
  AND (superseded_seq IS NULL OR superseded_seq > :at)
  AND (created_at, event_id) > (:after_created_at, :after_event_id)
ORDER BY created_at, event_id
LIMIT :limit

-- name: newest
-- An author's snapshots whose payload is kept, the newest first; of one second, the smaller id first. The bound is a condition
-- of its own, because PostgreSQL does not see it in the OR and would read all earlier pages again.
SELECT seq, event_id, author, kind, d, o, c, created_at, size, 1 FROM snapshot
WHERE author = :author AND event IS NOT NULL AND seq <= :at AND created_at >= :since
  AND created_at <= :before_created_at
  AND (created_at < :before_created_at OR event_id > :after_event_id)
ORDER BY created_at DESC, event_id
LIMIT :limit

-- name: newest_of_all
SELECT seq, event_id, author, kind, d, o, c, created_at, size, 1 FROM snapshot
WHERE event IS NOT NULL AND seq <= :at AND created_at >= :since
  AND created_at <= :before_created_at
  AND (created_at < :before_created_at OR event_id > :after_event_id)
ORDER BY created_at DESC, event_id
LIMIT :limit

-- name: by_id
SELECT snapshot.seq, snapshot.event_id, snapshot.author, snapshot.kind, snapshot.d, snapshot.o, snapshot.c,
       snapshot.created_at, snapshot.size, snapshot.event IS NOT NULL
FROM wanted
JOIN snapshot ON snapshot.event_id = wanted.event_id
ORDER BY snapshot.created_at DESC, snapshot.event_id

-- name: payloads
SELECT snapshot.seq, snapshot.event FROM wanted JOIN snapshot ON snapshot.seq = wanted.seq
