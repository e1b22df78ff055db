-- name: has_open
-- A condition that always holds leads the database to the index of what is open, which is short.
SELECT 1 FROM hook_outbox WHERE ended_at IS NULL AND attempts >= 0 LIMIT 1

-- name: other_owners
SELECT DISTINCT lock_owner FROM hook_outbox WHERE lock_owner IS NOT NULL AND lock_owner <> :owner

-- name: expire_locks
-- Of a worker that is known to be dead: nobody has to wait for the cutoff.
UPDATE hook_outbox SET locked_at = 0 WHERE lock_owner = :owner

-- name: lost
-- What was in the hands of a worker that died, or has stalled beyond the cutoff.
SELECT id, lock_owner, lock_token, attempts
FROM hook_outbox
WHERE status = 'handling' AND lock_owner <> :owner AND locked_at <= :cutoff

-- name: due
-- What may be claimed, in order. A row is free if it waits and is due, or if its lock has lapsed; and it is claimable only
-- if every earlier open row of its session is this worker's already, or free too, and so in this very list. Hence a row that
-- waits for a retry, or is another worker's, holds its session, and no other. A wait longer than any that is ever given means
-- that the clock was set back. What holds a session is found once for all of its rows: one session may have very many. The
-- plus signs keep the database from walking through all that has ended.
WITH holding AS (
    SELECT agent, session_id, min(id) AS id
    FROM hook_outbox
    WHERE ended_at IS NULL
      AND coalesce(lock_owner, '') <> :owner
      AND NOT (status = 'pending' AND (next_attempt_at <= :now OR next_attempt_at > :horizon))
      AND NOT (status = 'locked' AND locked_at <= :cutoff)
    GROUP BY +agent, +session_id)
SELECT candidate.status, candidate.id, candidate.event_id, candidate.agent, candidate.session_id, candidate.event_type,
       candidate.event_name, candidate.received_at, candidate.lock_token
FROM hook_outbox AS candidate
LEFT JOIN holding ON holding.agent = candidate.agent AND holding.session_id = candidate.session_id
WHERE candidate.ended_at IS NULL
  AND +candidate.id > :after
  AND ((candidate.status = 'pending'
        AND (candidate.next_attempt_at <= :now OR candidate.next_attempt_at > :horizon))
    OR (candidate.status = 'locked' AND candidate.lock_owner <> :owner AND candidate.locked_at <= :cutoff))
  AND (holding.id IS NULL OR candidate.id < holding.id)
ORDER BY candidate.id
LIMIT :limit

-- name: claim
-- The token grows with every claim; whatever an earlier holder still believes, its marks no longer fit.
UPDATE hook_outbox
SET status = :after, lock_owner = :owner, lock_token = lock_token + 1, locked_at = :now
WHERE id = :id AND status = :before AND lock_token = :token
RETURNING lock_token

-- name: renew
-- Which rows are still this worker's is part of the answer: another may have taken some over.
UPDATE hook_outbox SET locked_at = :now WHERE lock_owner = :owner RETURNING id, lock_token

-- name: mark
-- Only the holder of the lock may mark, and only the state that it knows.
UPDATE hook_outbox
SET status = :after,
    attempts = attempts + :counted,
    next_attempt_at = coalesce(:next_attempt_at, next_attempt_at),
    last_error = coalesce(:error, last_error),
    lock_owner = :lock_owner,
    locked_at = :locked_at,
    ended_at = :ended_at
WHERE id = :id AND status = :before AND lock_owner = :owner AND lock_token = :token
RETURNING attempts

-- name: open_before
-- What may stand before a row: whatever is open and earlier, and whatever a handler has.
SELECT id, event_type, status
FROM hook_outbox
WHERE ended_at IS NULL AND agent = :agent AND session_id = :session_id AND (id < :id OR (status = 'handling' AND id <> :id))

-- name: payload
SELECT payload FROM hook_outbox WHERE id = :id

-- name: unreported
SELECT id, event_id, agent, session_id, event_type, event_name, received_at, attempts, coalesce(last_error, ''), status,
       length(payload), received_reported, ended_reported
FROM hook_outbox
WHERE received_reported = 0 OR (ended_at IS NOT NULL AND ended_reported = 0)
ORDER BY id
LIMIT :limit

-- name: mark_reported
-- What has ended since the report was made is reported next time.
UPDATE hook_outbox SET received_reported = 1, ended_reported = :ended WHERE id = :id

-- name: prune
-- Only what the history has.
DELETE FROM hook_outbox
WHERE id IN (
    SELECT id FROM hook_outbox
    WHERE ended_at < :before AND received_reported = 1 AND ended_reported = 1
    ORDER BY ended_at
    LIMIT :limit)

-- name: numbers
SELECT status, count(*) FROM hook_outbox GROUP BY status

-- name: stuck
-- What has been open for too long: how many, and since when the oldest.
SELECT count(*), min(received_at) FROM hook_outbox WHERE ended_at IS NULL AND received_at < :before

-- name: dropped
SELECT agent, event_name, reason, count, first_at, last_at FROM hook_dropped ORDER BY reason, agent, event_name

-- name: dead
SELECT id, event_id, agent, session_id, event_type, attempts, last_error, ended_at
FROM hook_outbox
WHERE status = 'dead'
ORDER BY id DESC
LIMIT :limit

-- name: without_session
SELECT count(*) FROM hook_outbox WHERE session_id = '' AND event_name <> 'receiver'

-- name: session_events
SELECT event_id, event_type, status, last_error, received_at, ended_at, ended_reported
FROM hook_outbox
WHERE agent = :agent AND session_id = :session_id
ORDER BY id

-- name: digested
-- Rows from before there were digests have nothing to be held against.
SELECT id, digest, event_id, agent, session_id, event_type, event_name, occurrence, received_at, payload
FROM hook_outbox
WHERE id > :after AND digest IS NOT NULL
ORDER BY id
LIMIT :limit
