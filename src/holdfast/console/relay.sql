-- name: newest
-- Pages are found as positions first, each way by an index of its own; what they show is looked up afterwards.
SELECT seq FROM message WHERE seq < :at AND kind = :kind ORDER BY seq DESC LIMIT :limit

-- name: oldest
SELECT seq FROM message WHERE seq > :at AND kind = :kind ORDER BY seq LIMIT :limit

-- name: newest_of_mesh
-- Of a mesh, or of a sender in it, there is no index: so many messages are looked through, and the next page goes on behind them.
SELECT seq FROM (SELECT seq, mesh, sender, kind FROM message WHERE seq < :at ORDER BY seq DESC LIMIT :looked_through) AS near
WHERE mesh = :mesh AND (CAST(:sender AS TEXT) IS NULL OR sender = :sender) AND kind = :kind ORDER BY seq DESC LIMIT :limit

-- name: oldest_of_mesh
SELECT seq FROM (SELECT seq, mesh, sender, kind FROM message WHERE seq > :at ORDER BY seq LIMIT :looked_through) AS near
WHERE mesh = :mesh AND (CAST(:sender AS TEXT) IS NULL OR sender = :sender) AND kind = :kind ORDER BY seq LIMIT :limit

-- name: newest_looked_through
SELECT count(*), min(seq) FROM (SELECT seq FROM message WHERE seq < :at ORDER BY seq DESC LIMIT :looked_through) AS near

-- name: oldest_looked_through
SELECT count(*), max(seq) FROM (SELECT seq FROM message WHERE seq > :at ORDER BY seq LIMIT :looked_through) AS near

-- name: newest_of_topic
SELECT seq FROM message
WHERE mesh = :mesh AND destination_kind = 'topic' AND destination_ref = :topic AND seq < :at AND kind = :kind
ORDER BY seq DESC LIMIT :limit

-- name: oldest_of_topic
SELECT seq FROM message
WHERE mesh = :mesh AND destination_kind = 'topic' AND destination_ref = :topic AND seq > :at AND kind = :kind
ORDER BY seq LIMIT :limit

-- name: newest_of_recipient
SELECT seq FROM delivery WHERE mesh = :mesh AND member = :recipient AND seq < :at AND is_receipt = :is_receipt ORDER BY seq DESC LIMIT :limit

-- name: oldest_of_recipient
SELECT seq FROM delivery WHERE mesh = :mesh AND member = :recipient AND seq > :at AND is_receipt = :is_receipt ORDER BY seq LIMIT :limit

-- name: newest_in_queues
-- What somebody has not got yet, each once however many wait for it. What waits lies by queue; the page can only be in those
-- queues whose first message on it is among the first of all, and no further in each than a page. INDEXED BY: else SQLite takes
-- the key of the table, which leads along all that was ever delivered.
WITH first AS MATERIALIZED (
    SELECT member.mesh, member.member,
           (SELECT delivery.seq FROM delivery INDEXED BY delivery_queue
            WHERE delivery.mesh = member.mesh AND delivery.member = member.member AND delivery.state = 'open'
              AND delivery.is_receipt = 0 AND delivery.seq < :at
            ORDER BY delivery.seq DESC LIMIT 1) AS seq
    FROM member WHERE member.queue_count > 0
)
SELECT DISTINCT delivery.seq
FROM first CROSS JOIN delivery INDEXED BY delivery_queue
WHERE first.seq >= (SELECT min(seq) FROM (SELECT DISTINCT seq FROM first WHERE seq IS NOT NULL ORDER BY seq DESC LIMIT :limit) AS page)
  AND delivery.mesh = first.mesh AND delivery.member = first.member AND delivery.state = 'open' AND delivery.is_receipt = 0
  AND delivery.seq <= first.seq AND delivery.seq > coalesce((
    SELECT beyond.seq FROM delivery AS beyond INDEXED BY delivery_queue
    WHERE beyond.mesh = first.mesh AND beyond.member = first.member AND beyond.state = 'open' AND beyond.is_receipt = 0
      AND beyond.seq <= first.seq
    ORDER BY beyond.seq DESC LIMIT 1 OFFSET :limit), 0)
ORDER BY delivery.seq DESC LIMIT :limit

-- name: oldest_in_queues
WITH first AS MATERIALIZED (
    SELECT member.mesh, member.member,
           (SELECT delivery.seq FROM delivery INDEXED BY delivery_queue
            WHERE delivery.mesh = member.mesh AND delivery.member = member.member AND delivery.state = 'open'
              AND delivery.is_receipt = 0 AND delivery.seq > :at
            ORDER BY delivery.seq LIMIT 1) AS seq
    FROM member WHERE member.queue_count > 0
)
SELECT DISTINCT delivery.seq
FROM first CROSS JOIN delivery INDEXED BY delivery_queue
WHERE first.seq <= (SELECT max(seq) FROM (SELECT DISTINCT seq FROM first WHERE seq IS NOT NULL ORDER BY seq LIMIT :limit) AS page)
  AND delivery.mesh = first.mesh AND delivery.member = first.member AND delivery.state = 'open' AND delivery.is_receipt = 0
  AND delivery.seq >= first.seq AND delivery.seq < coalesce((
    SELECT beyond.seq FROM delivery AS beyond INDEXED BY delivery_queue
    WHERE beyond.mesh = first.mesh AND beyond.member = first.member AND beyond.state = 'open' AND beyond.is_receipt = 0
      AND beyond.seq >= first.seq
    ORDER BY beyond.seq LIMIT 1 OFFSET :limit), 9223372036854775807)
ORDER BY delivery.seq LIMIT :limit

-- name: newest_waiting_for
SELECT seq FROM delivery INDEXED BY delivery_queue WHERE mesh = :mesh AND member = :recipient AND state = 'open' AND seq < :at ORDER BY seq DESC LIMIT :limit

-- name: oldest_waiting_for
SELECT seq FROM delivery INDEXED BY delivery_queue WHERE mesh = :mesh AND member = :recipient AND state = 'open' AND seq > :at ORDER BY seq LIMIT :limit

-- name: messages
-- Without the event: a list shows none, and it is most of the row.
SELECT message.seq, message.message_id, message.client_message_id, message.mesh, message.sender, message.kind,
       message.destination_kind, message.destination_ref, message.size, message.accepted_at
FROM wanted JOIN message ON message.seq = wanted.seq

-- name: outcomes
SELECT delivery.seq, delivery.state, count(*)
FROM wanted JOIN delivery ON delivery.seq = wanted.seq
GROUP BY delivery.seq, delivery.state

-- name: names
SELECT member.mesh, member.member, member.name
FROM wanted JOIN member ON member.mesh = wanted.mesh AND member.member = wanted.member

-- name: mesh_names
SELECT mesh, name FROM mesh ORDER BY name, mesh LIMIT :limit

-- name: find_message
-- One id is looked for in every place where it can be one.
SELECT message_id FROM message WHERE message_id = :name
UNION
SELECT message_id FROM message WHERE event_id = :event_id
LIMIT 2

-- name: find_client_message
-- Ids of callers belong to their senders, so members are asked one by one: the key begins with them. CROSS JOIN keeps the order.
SELECT dedupe.message_id
FROM member CROSS JOIN dedupe
WHERE dedupe.mesh = member.mesh AND dedupe.sender = member.member AND dedupe.client_message_id = :name
LIMIT 20

-- name: message
SELECT seq, message_id, client_message_id, mesh, sender, kind, destination_kind, destination_ref, size, accepted_at, expires_at,
       event_id, event
FROM message WHERE message_id = :message_id

-- name: deliveries
SELECT member, state, expires_at, closed_at, was_stored, receipted_at, is_receipt
FROM delivery WHERE seq = :seq AND member > :at ORDER BY member LIMIT :limit

-- name: delivery_states
SELECT state, count(*), sum(CASE WHEN receipted_at IS NULL THEN 0 ELSE 1 END) FROM delivery WHERE seq = :seq GROUP BY state

-- name: decisions
-- Of what ends otherwise than by delivery the history has the reason; there are few such entries, and an index of them alone.
SELECT seq, at, kind, recipient, destination_kind, destination_ref, reason
FROM history
WHERE message_id = :message_id AND kind IN ('moderated', 'quarantined', 'dropped')
ORDER BY seq LIMIT :limit

-- name: entry
SELECT seq, at, kind, recipients, mentions, epoch, sequence, reason FROM history WHERE seq = :seq

-- name: at_of
-- The next entry stands in for one that a damaged history lacks.
SELECT at FROM history WHERE seq >= :seq ORDER BY seq LIMIT 1

-- name: rates
-- What happened in each minute of a stretch of the history.
SELECT (at - :since) / :unit, kind, count(*) FROM history WHERE seq > :after GROUP BY 1, 2

-- name: accepted_since
-- Where the stretch begins that the funnel looks at, and how many messages are in it; counted from the newest back.
SELECT count(*), min(seq), min(accepted_at) FROM (
    SELECT seq, accepted_at FROM message WHERE accepted_at >= :since AND kind = :kind
    ORDER BY accepted_at DESC, seq DESC LIMIT :limit
) AS newest

-- name: funnel
SELECT state, count(*), sum(CASE WHEN receipted_at IS NULL THEN 0 ELSE 1 END)
FROM delivery WHERE seq >= :seq AND is_receipt = 0 GROUP BY state

-- name: oldest_open
-- The messages that somebody has waited for longest, the first of each queue: what stands behind it waits for its reader, too.
SELECT first.seq, first.mesh, first.member, message.message_id, message.accepted_at, message.expires_at
FROM (
    SELECT member.mesh, member.member,
           (SELECT delivery.seq FROM delivery INDEXED BY delivery_queue
            WHERE delivery.mesh = member.mesh AND delivery.member = member.member AND delivery.state = 'open'
              AND delivery.is_receipt = 0
            ORDER BY delivery.seq LIMIT 1) AS seq
    FROM member WHERE member.queue_count > 0
) AS first
JOIN message ON message.seq = first.seq
ORDER BY first.seq LIMIT :limit

-- name: longest_queues
-- Members are few beside messages, and each knows the length of its queue.
SELECT member.mesh, mesh.name, member.member, member.name, member.queue_count,
       (SELECT delivery.seq FROM delivery INDEXED BY delivery_queue
        WHERE delivery.mesh = member.mesh AND delivery.member = member.member AND delivery.state = 'open' AND delivery.is_receipt = 0
        ORDER BY delivery.seq LIMIT 1)
FROM member JOIN mesh ON mesh.mesh = member.mesh
WHERE member.queue_count > 0 AND (CAST(:mesh AS TEXT) IS NULL OR member.mesh = :mesh)
ORDER BY member.queue_count DESC, member.mesh, member.member
LIMIT :limit OFFSET :skip

-- name: queues_by_name
SELECT member.mesh, mesh.name, member.member, member.name, member.queue_count,
       (SELECT delivery.seq FROM delivery INDEXED BY delivery_queue
        WHERE delivery.mesh = member.mesh AND delivery.member = member.member AND delivery.state = 'open' AND delivery.is_receipt = 0
        ORDER BY delivery.seq LIMIT 1)
FROM member JOIN mesh ON mesh.mesh = member.mesh
WHERE member.queue_count > 0 AND (CAST(:mesh AS TEXT) IS NULL OR member.mesh = :mesh)
ORDER BY member.name, member.mesh, member.member
LIMIT :limit OFFSET :skip

-- name: times
SELECT message.seq, message.accepted_at FROM wanted JOIN message ON message.seq = wanted.seq

-- name: meshes
SELECT mesh.mesh, mesh.name, mesh.created_at, mesh.revision,
       (SELECT count(*) FROM member WHERE member.mesh = mesh.mesh AND member.status = 'active'),
       (SELECT count(*) FROM topic WHERE topic.mesh = mesh.mesh),
       (SELECT coalesce(sum(queue_count), 0) FROM member WHERE member.mesh = mesh.mesh)
FROM mesh
WHERE mesh.mesh > :at AND (CAST(:name AS TEXT) IS NULL OR lower(mesh.name) LIKE :name ESCAPE '!')
ORDER BY mesh.mesh LIMIT :limit

-- name: mesh
SELECT mesh, name, created_at, revision FROM mesh WHERE mesh = :mesh

-- name: members
SELECT member.member, member.name, member.role, member.status, member.joined_at, member.revoked_at, member.queue_count,
       member_key.pubkey, member_key.since
FROM member
LEFT JOIN member_key ON member_key.mesh = member.mesh AND member_key.member = member.member AND member_key.until IS NULL
WHERE member.mesh = :mesh AND member.member > :at
  AND (CAST(:status AS TEXT) IS NULL OR member.status = :status) AND (CAST(:name AS TEXT) IS NULL OR lower(member.name) LIKE :name ESCAPE '!')
ORDER BY member.member LIMIT :limit

-- name: member
SELECT member, name, role, status, joined_at, revoked_at, queue_count FROM member WHERE mesh = :mesh AND member = :member

-- name: member_keys
SELECT pubkey, since, until FROM member_key WHERE mesh = :mesh AND member = :member ORDER BY since DESC LIMIT :limit

-- name: member_topics
SELECT subscription.topic, subscription.since, topic_grant.member IS NOT NULL
FROM subscription
JOIN topic ON topic.mesh = subscription.mesh AND topic.topic = subscription.topic
LEFT JOIN topic_grant ON topic_grant.mesh = topic.mesh AND topic_grant.topic = topic.topic AND topic_grant.key_epoch = topic.key_epoch
                     AND topic_grant.member = subscription.member
WHERE subscription.mesh = :mesh AND subscription.member = :member
ORDER BY subscription.topic LIMIT :limit

-- name: topics
SELECT topic.topic, topic.key_epoch, topic.created_by, topic.created_at,
       (SELECT count(*) FROM subscription WHERE subscription.mesh = topic.mesh AND subscription.topic = topic.topic)
FROM topic WHERE topic.mesh = :mesh ORDER BY topic.topic LIMIT :limit

-- name: feed_counts
SELECT (SELECT min_seq FROM feed), (SELECT count(*) FROM author), (SELECT count(*) FROM document WHERE currents > 1)

-- name: documents
SELECT author, d, currents, puts, changed_seq, pruned_seq FROM document
WHERE (author, d) > (:author, :d)
ORDER BY author, d LIMIT :limit

-- name: documents_of
SELECT author, d, currents, puts, changed_seq, pruned_seq FROM document WHERE author = :author AND d > :d ORDER BY d LIMIT :limit

-- name: conflicting
SELECT author, d, currents, puts, changed_seq, pruned_seq FROM document
WHERE currents > 1 AND (author, d) > (:author, :d)
ORDER BY author, d LIMIT :limit

-- name: conflicting_of
SELECT author, d, currents, puts, changed_seq, pruned_seq FROM document
WHERE currents > 1 AND author = :author AND d > :d
ORDER BY d LIMIT :limit

-- name: document
SELECT author, d, currents, puts, changed_seq, pruned_seq FROM document WHERE author = :author AND d = :d

-- name: snapshots
-- Without the event: only its author can open it.
SELECT seq, event_id, kind, o, c, clock, created_at, accepted_at, superseded_seq, event IS NOT NULL, size
FROM snapshot WHERE author = :author AND d = :d AND seq < :at ORDER BY seq DESC LIMIT :limit

-- name: consumers
SELECT name, log_id, seq, registered_at, moved_at FROM consumer ORDER BY name LIMIT :limit

-- name: authors
SELECT author.author, author.mesh, author.member, author.since FROM author ORDER BY author.since DESC LIMIT :limit

-- name: entries
SELECT seq, at, kind, mesh, message_id, sender, recipient, destination_kind, destination_ref, size, reason
FROM history WHERE seq < :at ORDER BY seq DESC LIMIT :limit
