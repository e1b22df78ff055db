-- name: one_event_of_a_session_is_handled_at_a_time
-- Of one session, at most one event is in a handler's hands.
SELECT agent, session_id, count(*)
FROM hook_outbox
WHERE status = 'handling'
GROUP BY agent, session_id
HAVING count(*) > 1

-- name: critical_events_end_in_order
-- No critical event has ended while an earlier one of its session is still open.
SELECT later.id, earlier.id
FROM hook_outbox AS later
JOIN hook_outbox AS earlier
    ON earlier.agent = later.agent AND earlier.session_id = later.session_id AND earlier.id < later.id
WHERE earlier.ended_at IS NULL AND later.status IN ('done', 'dead')
  AND later.event_type IN ('session_start', 'user_prompt_submit', 'agent_stop', 'session_end', 'notification', 'error',
                           'subagent_stop', 'compact')

-- name: no_critical_event_is_coalesced
-- Only bursty events are coalesced.
SELECT id, event_type
FROM hook_outbox
WHERE status = 'coalesced'
  AND event_type IN ('session_start', 'user_prompt_submit', 'agent_stop', 'session_end', 'notification', 'error',
                     'subagent_stop', 'compact')

-- name: what_ended_without_success_says_why
-- An event that is dead or coalesced keeps what ended it.
SELECT id, status FROM hook_outbox WHERE status IN ('dead', 'coalesced') AND (last_error IS NULL OR last_error = '')

-- name: nothing_was_handled_without_an_attempt
-- What is done or in a handler's hands was counted before the handler got it.
SELECT id, status FROM hook_outbox WHERE status IN ('done', 'handling') AND attempts < 1

-- name: an_end_is_reported_after_its_beginning
-- The end of an event is in the history only if its beginning is.
SELECT id FROM hook_outbox WHERE ended_reported = 1 AND (received_reported = 0 OR ended_at IS NULL)
