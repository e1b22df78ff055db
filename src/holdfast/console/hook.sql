-- name: sessions
-- Without what an agent and its user said, the session that moved last first.
SELECT agent_session.agent, agent_session.session_id, agent_session.state, agent_session.turns, agent_session.started_at,
       agent_session.last_event_at, agent_session.last_event_type, agent_session.tool, agent_session.error,
       (SELECT count(*) FROM hook_outbox
        WHERE hook_outbox.agent = agent_session.agent AND hook_outbox.session_id = agent_session.session_id
          AND hook_outbox.ended_at IS NULL)
FROM agent_session
ORDER BY agent_session.last_event_at DESC, agent_session.agent, agent_session.session_id
LIMIT :limit OFFSET :skip

-- name: events
-- Without the payload: what an agent and its user said stays in the file.
SELECT id, event_type, event_name, received_at, status, attempts, last_error, ended_at
FROM hook_outbox
WHERE agent = :agent AND session_id = :session_id AND id < :at
ORDER BY id DESC LIMIT :limit

-- name: dropped
SELECT agent, event_name, reason, count, last_at FROM hook_dropped ORDER BY last_at DESC LIMIT :limit
