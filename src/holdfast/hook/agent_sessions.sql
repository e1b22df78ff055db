-- name: find
SELECT agent, session_id, state, cwd, started_at, last_event_at, last_event_id, last_event_type, turns, prompt, message,
       notification, error, tool, transcript_path, transcript_end, transcript_size, transcript_line, ended_at
FROM agent_session
WHERE agent = :agent AND session_id = :session_id

-- name: like
-- What a person may have typed is the beginning of an id.
SELECT agent, session_id, state, cwd, started_at, last_event_at, last_event_id, last_event_type, turns, prompt, message,
       notification, error, tool, transcript_path, transcript_end, transcript_size, transcript_line, ended_at
FROM agent_session
WHERE substr(session_id, 1, length(:session_id)) = :session_id
ORDER BY last_event_at DESC
LIMIT :limit

-- name: latest
SELECT agent, session_id, state, cwd, started_at, last_event_at, last_event_id, last_event_type, turns, prompt, message,
       notification, error, tool, transcript_path, transcript_end, transcript_size, transcript_line, ended_at
FROM agent_session
WHERE last_event_at >= :since AND (:agent IS NULL OR agent = :agent)
ORDER BY last_event_at DESC
LIMIT :limit

-- name: keep
INSERT INTO agent_session (agent, session_id, state, cwd, started_at, last_event_at, last_event_id, last_event_type, turns,
    prompt, message, notification, error, tool, transcript_path, transcript_end, transcript_size, transcript_line, ended_at)
VALUES (:agent, :session_id, :state, :cwd, :started_at, :last_event_at, :last_event_id, :last_event_type, :turns,
    :prompt, :message, :notification, :error, :tool, :transcript_path, :transcript_end, :transcript_size, :transcript_line, :ended_at)
ON CONFLICT (agent, session_id) DO UPDATE
SET state = excluded.state, cwd = excluded.cwd, started_at = excluded.started_at,
    last_event_at = excluded.last_event_at, last_event_id = excluded.last_event_id,
    last_event_type = excluded.last_event_type, turns = excluded.turns, prompt = excluded.prompt,
    message = excluded.message, notification = excluded.notification, error = excluded.error, tool = excluded.tool,
    transcript_path = excluded.transcript_path, transcript_end = excluded.transcript_end,
    transcript_size = excluded.transcript_size, transcript_line = excluded.transcript_line, ended_at = excluded.ended_at

-- name: tell
-- What was told before under the same id stays as it was.
INSERT INTO agent_event (id, kind, agent, session_id, at, told_at, document)
VALUES (:id, :kind, :agent, :session_id, :at, :told_at, :document)
ON CONFLICT (id) DO NOTHING

-- name: told
SELECT position, told_at, document FROM agent_event WHERE position > :after ORDER BY position LIMIT :limit

-- name: told_of
-- The last that one session has told, latest first.
SELECT document FROM agent_event
WHERE agent = :agent AND session_id = :session_id
ORDER BY position DESC
LIMIT :limit

-- name: head
SELECT coalesce(max(position), 0) FROM agent_event

-- name: follow
-- Who is new follows from here on.
INSERT INTO agent_follower (name, position) SELECT :name, coalesce(max(position), 0) FROM agent_event WHERE true
ON CONFLICT (name) DO NOTHING

-- name: follower
SELECT position FROM agent_follower WHERE name = :name

-- name: followers
SELECT name, position, delivered, given_up, given_up_at, given_up_error, last_error, last_error_at
FROM agent_follower
ORDER BY name

-- name: forget
-- Whoever is named no longer may be named again, and goes on where they were; not when what comes next is too old.
DELETE FROM agent_follower
WHERE name = :name
  AND (SELECT told_at FROM agent_event WHERE agent_event.position > agent_follower.position
       ORDER BY agent_event.position LIMIT 1) < :before
RETURNING (SELECT count(*) FROM agent_event WHERE agent_event.position > agent_follower.position)

-- name: advance
UPDATE agent_follower
SET position = CASE WHEN position < :position THEN :position ELSE position END, delivered = delivered + :delivered, given_up = given_up + :given_up,
    given_up_error = coalesce(:given_up_error, given_up_error),
    given_up_at = CASE WHEN :given_up_error IS NULL THEN given_up_at ELSE :error_at END,
    last_error = coalesce(:error, last_error),
    last_error_at = CASE WHEN :error IS NULL THEN last_error_at ELSE :error_at END
WHERE name = :name

-- name: prune_events
-- Not before every follower has delivered it or given it up.
DELETE FROM agent_event
WHERE position IN (
    SELECT position FROM agent_event
    WHERE told_at < :before AND position <= coalesce((SELECT min(position) FROM agent_follower), position)
    ORDER BY told_at
    LIMIT :limit)

-- name: prune_sessions
-- What nobody has heard of for long; an agent that takes it up again makes it known again.
DELETE FROM agent_session
WHERE (agent, session_id) IN (
    SELECT agent, session_id FROM agent_session WHERE last_event_at < :before ORDER BY last_event_at LIMIT :limit)
