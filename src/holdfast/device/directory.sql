-- name: members
SELECT member, name, role, status, pubkey FROM directory_member ORDER BY member

-- name: keys
-- The newest first, because the current key of a member is looked up most.
SELECT pubkey, member, since, until FROM directory_key ORDER BY since DESC, pubkey

-- name: topics
SELECT topic, key_epoch, created_by, key_id FROM directory_topic ORDER BY topic

-- name: forget_members
DELETE FROM directory_member

-- name: forget_keys
DELETE FROM directory_key

-- name: forget_topics
DELETE FROM directory_topic
