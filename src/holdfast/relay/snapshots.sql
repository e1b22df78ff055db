-- name: admitted
-- The wanted authors that some active member has admitted.
SELECT DISTINCT wanted.author
FROM wanted
JOIN author ON author.author = wanted.author
JOIN member ON member.mesh = author.mesh AND member.member = author.member
WHERE member.status = 'active'

-- name: known
-- The snapshots that were accepted before, by the ids of their events.
SELECT wanted.event_id, snapshot.seq, snapshot.superseded_seq, snapshot.event IS NOT NULL
FROM wanted
JOIN snapshot ON snapshot.event_id = wanted.event_id

-- name: currents
SELECT wanted.author, wanted.d, snapshot.seq, snapshot.o, snapshot.clock
FROM wanted
JOIN snapshot ON snapshot.author = wanted.author AND snapshot.d = wanted.d AND snapshot.superseded_seq IS NULL
ORDER BY snapshot.seq

-- name: pruned
SELECT wanted.author, wanted.d, document.pruned
FROM wanted
JOIN document ON document.author = wanted.author AND document.d = wanted.d
WHERE document.pruned IS NOT NULL

-- name: remembered
-- Those of the wanted events that stand in what is left of their document. It may be long, and so is only searched for them; a
-- device of the same name is found, too.
SELECT wanted.event_id
FROM wanted
JOIN document ON document.author = wanted.author AND document.d = wanted.d
WHERE document.pruned LIKE '%"' || wanted.event_id || '"%'

-- name: supersede
UPDATE snapshot SET superseded_seq = :by WHERE seq = :seq AND superseded_seq IS NULL

-- name: describe
INSERT INTO document (author, d, currents, puts, changed_seq) VALUES (:author, :d, :currents, :puts, :changed_seq)
ON CONFLICT (author, d) DO UPDATE
SET currents = excluded.currents, puts = excluded.puts, changed_seq = excluded.changed_seq

-- name: recent
-- A document's superseded snapshots whose payload is kept, the newest first.
SELECT seq FROM snapshot
WHERE author = :author AND d = :d AND superseded_seq IS NOT NULL AND event IS NOT NULL AND compact_at IS NULL
ORDER BY created_at DESC, event_id DESC

-- name: let_go
UPDATE snapshot SET compact_at = :at WHERE seq = :seq

-- name: due
-- Payloads that are due to be dropped, unless some reader of the history has not passed them yet, or they were current at a
-- position whose state somebody is being handed.
SELECT seq, author, d, event_id, kind FROM snapshot
WHERE event IS NOT NULL AND compact_at <= :now AND seq <= :passed AND superseded_seq <= :settled
ORDER BY compact_at, seq
LIMIT :limit

-- name: compact
UPDATE snapshot SET event = NULL WHERE seq = :seq

-- name: crowded_authors
-- Authors with more deleted documents than are kept.
SELECT author, count(*) FROM document WHERE puts = 0 AND currents > 0 GROUP BY author HAVING count(*) > :kept

-- name: oldest_deleted
-- Snapshots that came dominated are rows of the document too: readers must have passed all of them. What earlier prunings left
-- is never dropped and compared with whatever comes, so a document that left much is not pruned again.
SELECT d, pruned FROM document
WHERE author = :author AND puts = 0 AND currents > 0 AND changed_seq <= :passed
  AND coalesce(length(pruned), 0) <= :left_max
  AND NOT EXISTS (
      SELECT 1 FROM snapshot
      WHERE snapshot.author = document.author AND snapshot.d = document.d AND snapshot.seq > :passed
  )
ORDER BY changed_seq
LIMIT :limit

-- name: currents_of
SELECT event_id, seq, clock FROM snapshot WHERE author = :author AND d = :d AND superseded_seq IS NULL ORDER BY seq

-- name: oldest_superseded
SELECT event_id, seq, clock FROM snapshot
WHERE author = :author AND d = :d AND superseded_seq IS NOT NULL
ORDER BY seq
LIMIT :limit

-- name: shorten_document
-- Its history is too long for one step: the current snapshots stay until the rest is gone, and may be older than the rest.
UPDATE document SET pruned = :pruned, pruned_seq = :pruned_seq WHERE author = :author AND d = :d

-- name: forget_document
UPDATE document
SET currents = 0, pruned = :pruned, pruned_seq = CASE WHEN pruned_seq > :pruned_seq THEN pruned_seq ELSE :pruned_seq END
WHERE author = :author AND d = :d

-- name: delete_snapshot
DELETE FROM snapshot WHERE seq = :seq

-- name: move_min_seq
UPDATE feed SET min_seq = :min_seq WHERE min_seq < :min_seq
