-- name: counts
SELECT (SELECT count(*) FROM mesh) AS meshes,
       (SELECT count(*) FROM member WHERE status = 'active') AS members,
       (SELECT count(*) FROM member WHERE status = 'revoked') AS members_revoked,
       (SELECT count(*) FROM topic) AS topics,
       (SELECT count(*) FROM message) AS messages,
       (SELECT count(*) FROM dedupe) AS ids,
       (SELECT count(*) FROM delivery WHERE state = 'open') AS deliveries_open

-- name: open_by_age
-- Open deliveries by the age of their message: up to a minute, an hour, a day, a week, and older. They are few: queues are limited.
SELECT count(CASE WHEN accepted_at > :minute THEN 1 END),
       count(CASE WHEN accepted_at <= :minute AND accepted_at > :hour THEN 1 END),
       count(CASE WHEN accepted_at <= :hour AND accepted_at > :day THEN 1 END),
       count(CASE WHEN accepted_at <= :day AND accepted_at > :week THEN 1 END),
       count(CASE WHEN accepted_at <= :week THEN 1 END),
       min(accepted_at)
FROM delivery
JOIN message ON message.seq = delivery.seq
WHERE delivery.state = 'open'

-- name: last_accepted_at
SELECT accepted_at FROM message ORDER BY seq DESC LIMIT 1

-- name: consumers
SELECT name, log_id, seq, moved_at FROM consumer ORDER BY name
