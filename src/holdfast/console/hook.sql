-- name: sessions
-- The sessions of the latest events, the one that moved last first.
SELECT agent, session_id, count(*), min(received_at), max(received_at),
       sum(CASE WHEN ended_at IS NULL THEN 1 ELSE 0 END), sum(CASE WHEN status = 'dead' THEN 1 ELSE 0 END)
FROM (
    SELECT agent, session_id, received_at, ended_at, status FROM hook_outbox ORDER BY id DESC LIMIT :events
) AS latest
GROUP BY agent, session_id
ORDER BY max(received_at) DESC, agent, session_id
LIMIT :limit OFFSET :skip

-- name: events
-- Without the payload: what an agent and its user said stays in the file.
SELECT id, event_type, event_name, received_at, status, attempts, last_error, ended_at
FROM hook_outbox
WHERE agent = :agent AND session_id = :session_id AND id < :at
ORDER BY id DESC LIMIT :limit

-- name: dropped
SELECT agent, event_name, reason, count, last_at FROM hook_dropped ORDER BY last_at DESC LIMIT :limit
