-- name: counter
SELECT counter FROM admin_counter WHERE mesh = :mesh AND signer = :signer

-- name: set_counter
INSERT INTO admin_counter (mesh, signer, counter) VALUES (:mesh, :signer, :counter)
ON CONFLICT (mesh, signer) DO UPDATE SET counter = excluded.counter

-- name: revise
-- After every action, even one that changed nothing: a needless revision costs one read, a missing one would hide a change.
UPDATE mesh SET revision = revision + 1 WHERE mesh = :mesh

-- name: mesh
SELECT name FROM mesh WHERE mesh = :mesh

-- name: create_mesh
INSERT INTO mesh (mesh, name, created_at) VALUES (:mesh, :name, :now)

-- name: member
SELECT member.status, member.role, member.name, member_key.pubkey
FROM member
LEFT JOIN member_key ON member_key.mesh = member.mesh AND member_key.member = member.member AND member_key.until IS NULL
WHERE member.mesh = :mesh AND member.member = :member

-- name: others
SELECT role FROM member WHERE mesh = :mesh AND member <> :member AND status = 'active'

-- name: taken
-- What of a new member is taken already: its id, its name among active members, or its key.
SELECT 'member id' FROM member WHERE mesh = :mesh AND member = :member
UNION ALL
SELECT 'name' FROM member WHERE mesh = :mesh AND name = :name AND status = 'active'
UNION ALL
SELECT 'key' FROM member_key WHERE mesh = :mesh AND pubkey = :pubkey

-- name: members
-- Revoked ones, too: the document of the mesh names them for ever.
SELECT count(*) FROM member WHERE mesh = :mesh

-- name: replaced_keys
-- Of all members, and of one. The last key of each is not counted, though that of a revoked one is no longer in force.
SELECT count(*) - count(DISTINCT member), count(CASE WHEN member = :member THEN 1 END) - 1 FROM member_key WHERE mesh = :mesh

-- name: add_member
-- expires_from is NULL, because an empty queue has nothing that expires.
INSERT INTO member (mesh, member, name, role, status, joined_at, expires_from)
VALUES (:mesh, :member, :name, :role, 'active', :now, NULL)

-- name: add_key
INSERT INTO member_key (mesh, pubkey, member, since) VALUES (:mesh, :pubkey, :member, :now)

-- name: retire_key
UPDATE member_key SET until = :now WHERE mesh = :mesh AND member = :member AND until IS NULL

-- name: rename_member
UPDATE member SET name = :name WHERE mesh = :mesh AND member = :member

-- name: set_role
UPDATE member SET role = :role WHERE mesh = :mesh AND member = :member

-- name: revoke_member
UPDATE member SET status = 'revoked', revoked_at = :now WHERE mesh = :mesh AND member = :member

-- name: leave_topics
DELETE FROM subscription WHERE mesh = :mesh AND member = :member

-- name: invite
SELECT role, expires_at, used_at, withdrawn_at FROM invite WHERE mesh = :mesh AND key = :key

-- name: add_invite
INSERT INTO invite (mesh, key, role, expires_at, created_by)
VALUES (:mesh, :key, :role, :expires_at, :created_by)

-- name: use_invite
UPDATE invite SET used_at = :now, used_by = :member WHERE mesh = :mesh AND key = :key

-- name: withdraw_invite
UPDATE invite SET withdrawn_at = :now
WHERE mesh = :mesh AND key = :key AND used_at IS NULL AND withdrawn_at IS NULL

-- name: withdraw_invites_of
-- A member who may no longer invite must not come back with an invitation of its own.
UPDATE invite SET withdrawn_at = :now
WHERE mesh = :mesh AND created_by = :member AND used_at IS NULL AND withdrawn_at IS NULL

-- name: topic
SELECT key_epoch, created_by, key_id FROM topic WHERE mesh = :mesh AND topic = :topic

-- name: topics
-- All, and those that one member created.
SELECT count(*), count(CASE WHEN created_by = :member THEN 1 END) FROM topic WHERE mesh = :mesh

-- name: create_topic
INSERT INTO topic (mesh, topic, key_epoch, created_by, created_at) VALUES (:mesh, :topic, 0, :created_by, :now)

-- name: subscriptions
-- To all topics, and whether this is one of them.
SELECT count(*), count(CASE WHEN topic = :topic AND member = :member THEN 1 END) FROM subscription WHERE mesh = :mesh

-- name: subscribe
INSERT INTO subscription (mesh, topic, member, since) VALUES (:mesh, :topic, :member, :now)
ON CONFLICT (mesh, topic, member) DO NOTHING

-- name: unsubscribe
DELETE FROM subscription WHERE mesh = :mesh AND topic = :topic AND member = :member

-- name: grant
-- The latest grant of an epoch counts: a member whose key rotated is granted again.
INSERT INTO topic_grant (mesh, topic, key_epoch, key_id, member, key, sealed, granted_by, granted_at)
VALUES (:mesh, :topic, :key_epoch, :key_id, :member, :key, :sealed, :granted_by, :now)
ON CONFLICT (mesh, topic, key_epoch, member) DO UPDATE
SET key_id = excluded.key_id, key = excluded.key, sealed = excluded.sealed, granted_by = excluded.granted_by, granted_at = excluded.granted_at

-- name: without_grant
-- Active subscribers without exactly this key; another keeper may have granted them a different one.
SELECT subscription.member
FROM subscription
JOIN member ON member.mesh = subscription.mesh AND member.member = subscription.member AND member.status = 'active'
LEFT JOIN topic_grant ON topic_grant.mesh = subscription.mesh AND topic_grant.topic = subscription.topic
                     AND topic_grant.member = subscription.member AND topic_grant.key_epoch = :key_epoch
                     AND topic_grant.key_id = :key_id
WHERE subscription.mesh = :mesh AND subscription.topic = :topic AND topic_grant.member IS NULL
ORDER BY subscription.member

-- name: advance
UPDATE topic SET key_epoch = key_epoch + 1, key_id = :key_id WHERE mesh = :mesh AND topic = :topic AND key_epoch = :key_epoch

-- name: supersede
UPDATE topic_grant SET superseded_at = :now WHERE mesh = :mesh AND topic = :topic AND key_epoch = :key_epoch

-- name: block
INSERT INTO block (mesh, member, blocked, since) VALUES (:mesh, :member, :blocked, :now)
ON CONFLICT (mesh, blocked, member) DO NOTHING

-- name: unblock
DELETE FROM block WHERE mesh = :mesh AND member = :member AND blocked = :blocked

-- name: author
SELECT member FROM author WHERE mesh = :mesh AND author = :author

-- name: authors
-- Those that one member has admitted, and whether this is one of them.
SELECT count(*), count(CASE WHEN author = :author THEN 1 END) FROM author WHERE mesh = :mesh AND member = :member

-- name: admit_author
INSERT INTO author (mesh, author, member, since) VALUES (:mesh, :author, :member, :now)
ON CONFLICT (mesh, author) DO UPDATE SET member = excluded.member, since = excluded.since

-- name: dismiss_author
DELETE FROM author WHERE mesh = :mesh AND author = :author

-- name: remove_consumer
DELETE FROM consumer WHERE name = :name
