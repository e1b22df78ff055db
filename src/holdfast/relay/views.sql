-- name: mesh
SELECT name, revision FROM mesh WHERE mesh = :mesh

-- name: reader
SELECT member_key.member
FROM member_key
JOIN member ON member.mesh = member_key.mesh AND member.member = member_key.member
WHERE member_key.mesh = :mesh AND member_key.pubkey = :pubkey AND member_key.until IS NULL AND member.status = 'active'

-- name: members
SELECT member.member, member_key.pubkey, member.name, member.role, member.status
FROM member
LEFT JOIN member_key ON member_key.mesh = member.mesh AND member_key.member = member.member AND member_key.until IS NULL
WHERE member.mesh = :mesh
ORDER BY member.joined_at, member.member

-- name: keys
-- Every key of every member: an event signed with an old key is still its member's.
SELECT member, pubkey, since, until FROM member_key WHERE mesh = :mesh ORDER BY member, since, pubkey

-- name: topics
SELECT topic, key_epoch, key_id, created_by FROM topic WHERE mesh = :mesh ORDER BY topic

-- name: subscribers
SELECT subscription.topic, subscription.member, topic_grant.member IS NOT NULL
FROM subscription
JOIN topic ON topic.mesh = subscription.mesh AND topic.topic = subscription.topic
LEFT JOIN topic_grant ON topic_grant.mesh = topic.mesh AND topic_grant.topic = topic.topic
                     AND topic_grant.key_epoch = topic.key_epoch AND topic_grant.key_id = topic.key_id
                AND topic_grant.member = subscription.member
WHERE subscription.mesh = :mesh
ORDER BY subscription.topic, subscription.member

-- name: left
-- Who holds the current key but is no longer a subscriber or keeper: the key has to be rotated. One of them per topic says
-- that; a keeper could make any number by granting the key to everybody.
SELECT topic.topic, min(topic_grant.member)
FROM topic
JOIN topic_grant ON topic_grant.mesh = topic.mesh AND topic_grant.topic = topic.topic
                AND topic_grant.key_epoch = topic.key_epoch AND topic_grant.key_id = topic.key_id
JOIN member ON member.mesh = topic.mesh AND member.member = topic_grant.member
LEFT JOIN subscription ON subscription.mesh = topic.mesh AND subscription.topic = topic.topic
                      AND subscription.member = topic_grant.member
WHERE topic.mesh = :mesh AND subscription.member IS NULL
  AND NOT (member.status = 'active' AND (member.role = 'admin' OR member.member = topic.created_by))
GROUP BY topic.topic

-- name: topic
SELECT key_epoch FROM topic WHERE mesh = :mesh AND topic = :topic

-- name: grants
SELECT key_epoch, key_id, key, sealed, granted_by FROM topic_grant
WHERE mesh = :mesh AND topic = :topic AND member = :member
ORDER BY key_epoch

-- name: counts
SELECT (SELECT count(*) FROM mesh),
       (SELECT count(*) FROM member WHERE status = 'active'),
       (SELECT coalesce(sum(queue_count), 0) FROM member),
       (SELECT coalesce(max(queue_count), 0) FROM member)
