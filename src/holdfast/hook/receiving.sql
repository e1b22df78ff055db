-- name: insert_event
-- A record of the spool may be inserted a second time, and an agent may fire one hook twice: the first stays.
INSERT INTO hook_outbox
    (event_id, agent, session_id, event_type, event_name, payload, occurrence, received_at, next_attempt_at, digest)
VALUES (:event_id, :agent, :session_id, :event_type, :event_name, :payload, :occurrence, :received_at, :received_at, :digest)
ON CONFLICT DO NOTHING

-- name: count_dropped
INSERT INTO hook_dropped (agent, event_name, reason, count, first_at, last_at)
VALUES (:agent, :event_name, :reason, 1, :received_at, :received_at)
ON CONFLICT (agent, event_name, reason)
DO UPDATE SET count = hook_dropped.count + 1, last_at = excluded.last_at
