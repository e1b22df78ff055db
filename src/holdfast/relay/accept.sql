-- name: signers
-- The members whose keys these are or were; an old key still finds its member's earlier sends.
SELECT wanted.mesh, wanted.pubkey, member_key.member, member_key.until, member.status, member.role
FROM wanted
JOIN member_key ON member_key.mesh = wanted.mesh AND member_key.pubkey = wanted.pubkey
JOIN member ON member.mesh = member_key.mesh AND member.member = member_key.member

-- name: meshes
SELECT mesh.mesh FROM wanted JOIN mesh ON mesh.mesh = wanted.mesh

-- name: earlier
SELECT dedupe.mesh, dedupe.sender, dedupe.client_message_id, dedupe.event_id, dedupe.message_id, dedupe.seq,
       dedupe.first_seen_at, dedupe.history_available, dedupe.skipped
FROM wanted
JOIN dedupe ON dedupe.mesh = wanted.mesh AND dedupe.sender = wanted.sender
           AND dedupe.client_message_id = wanted.client_message_id

-- name: members
SELECT wanted.mesh, wanted.member, member.status, member.queue_count, member.expires_from, member_key.pubkey
FROM wanted
JOIN member ON member.mesh = wanted.mesh AND member.member = wanted.member
LEFT JOIN member_key ON member_key.mesh = member.mesh AND member_key.member = member.member AND member_key.until IS NULL

-- name: topics
SELECT topic.mesh, topic.topic, topic.key_epoch
FROM wanted
JOIN topic ON topic.mesh = wanted.mesh AND topic.topic = wanted.topic

-- name: subscribers
-- Active subscribers that hold the current key; the others could not read a message, and wait for their key.
SELECT subscription.mesh, subscription.topic, subscription.member, member.queue_count, member.expires_from
FROM wanted
JOIN topic ON topic.mesh = wanted.mesh AND topic.topic = wanted.topic
JOIN subscription ON subscription.mesh = topic.mesh AND subscription.topic = topic.topic
JOIN member ON member.mesh = subscription.mesh AND member.member = subscription.member AND member.status = 'active'
JOIN topic_grant ON topic_grant.mesh = topic.mesh AND topic_grant.topic = topic.topic
                AND topic_grant.key_epoch = topic.key_epoch AND topic_grant.key_id = topic.key_id
                AND topic_grant.member = subscription.member
ORDER BY subscription.member

-- name: posters
-- Which of these members hold the topic's current key, and so may post, or are subscribed and wait for it.
SELECT wanted.mesh, wanted.topic, wanted.member, topic_grant.member IS NOT NULL
FROM wanted
JOIN topic ON topic.mesh = wanted.mesh AND topic.topic = wanted.topic
LEFT JOIN subscription ON subscription.mesh = topic.mesh AND subscription.topic = topic.topic
                      AND subscription.member = wanted.member
LEFT JOIN topic_grant ON topic_grant.mesh = topic.mesh AND topic_grant.topic = topic.topic
                AND topic_grant.key_epoch = topic.key_epoch AND topic_grant.key_id = topic.key_id
                AND topic_grant.member = wanted.member
WHERE topic_grant.member IS NOT NULL OR subscription.member IS NOT NULL

-- name: blockers
-- The members who block these senders.
SELECT block.mesh, block.blocked, block.member
FROM wanted
JOIN block ON block.mesh = wanted.mesh AND block.blocked = wanted.blocked

-- name: add_to_queue
UPDATE member
SET queue_count = queue_count + wanted.count,
    expires_from = CASE WHEN expires_from <= wanted.expires_at THEN expires_from ELSE wanted.expires_at END
FROM wanted WHERE member.mesh = wanted.mesh AND member.member = wanted.member

-- name: note_sequence
-- Only the greatest sequence of an epoch counts, because events may arrive in any order.
INSERT INTO sender_epoch (mesh, sender, epoch, sequence)
SELECT wanted.mesh, wanted.sender, wanted.epoch, wanted.sequence FROM wanted WHERE true
ON CONFLICT (mesh, sender, epoch) DO UPDATE SET sequence = excluded.sequence
WHERE sender_epoch.sequence < excluded.sequence

-- name: receiptable
-- The deliveries that members may confirm: their own rows, by the ids of the events. CROSS JOIN keeps this join order: the
-- other one would read everything that a member ever got.
SELECT wanted.mesh, wanted.member, wanted.event_id, delivery.seq, message.sender, delivery.state, delivery.receipted_at
FROM wanted CROSS JOIN message CROSS JOIN delivery
WHERE message.event_id = wanted.event_id AND message.mesh = wanted.mesh
  AND delivery.mesh = wanted.mesh AND delivery.member = wanted.member AND delivery.seq = message.seq
  AND delivery.is_receipt = 0

-- name: mark_receipted
-- Compare-and-set in one statement, as deliveries are closed.
UPDATE delivery SET receipted_at = wanted.receipted_at
FROM wanted
WHERE delivery.mesh = wanted.mesh AND delivery.member = wanted.member AND delivery.seq = wanted.seq
  AND delivery.receipted_at IS NULL AND delivery.state <> 'open'
RETURNING delivery.seq
