-- name: known
-- Which of these entries the history has.
SELECT history.event_id, history.kind
FROM wanted
JOIN history ON history.event_id = wanted.event_id AND history.kind = wanted.kind
WHERE history.kind IN ('hook_received', 'hook_done', 'hook_dead', 'hook_coalesced')
