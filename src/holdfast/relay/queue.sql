-- name: reader
-- The active member whose current key this is.
SELECT member_key.member
FROM member_key
JOIN member ON member.mesh = member_key.mesh AND member.member = member_key.member
WHERE member_key.mesh = :mesh AND member_key.pubkey = :pubkey AND member_key.until IS NULL AND member.status = 'active'

-- name: was_reader
-- The active member whose key this was before it was rotated. A revoked member does not count: its key ended otherwise.
SELECT member_key.member
FROM member_key
JOIN member ON member.mesh = member_key.mesh AND member.member = member_key.member
WHERE member_key.mesh = :mesh AND member_key.pubkey = :pubkey AND member_key.until IS NOT NULL AND member.status = 'active'

-- name: status
SELECT status FROM member WHERE mesh = :mesh AND member = :member

-- name: pending
-- The number of waiting messages that have not expired; a queue is short, so they are counted. INDEXED BY, here and below:
-- SQLite might choose the table's key instead, and read everything that was ever delivered.
SELECT count(*) FROM delivery INDEXED BY delivery_queue
WHERE mesh = :mesh AND member = :member AND state = 'open' AND is_receipt = 0 AND expires_at > :now

-- name: highest_sequence
SELECT sequence FROM sender_epoch WHERE mesh = :mesh AND sender = :member AND epoch = :epoch

-- name: forks
-- Restorations whose entries were pruned, and those in the history. The condition is the index's: the history is long, and
-- this runs at every connection.
SELECT seq, detail FROM restoration
UNION ALL
SELECT seq, detail FROM history WHERE kind = 'restored'
ORDER BY seq

-- name: waiting
-- The next messages of a queue, as many as the batch and its bytes allow and at least one. Expired ones are skipped: the
-- sweep closes them. The limit is inside, so that sizes are summed over no more rows than may be sent.
SELECT seq, message_id, sender, event_id, accepted_at, event, digest
FROM (SELECT next.seq, next.message_id, message.sender, message.event_id, message.accepted_at, message.event, message.digest,
             sum(coalesce(message.size, 0)) OVER (ORDER BY next.seq) - coalesce(message.size, 0) AS bytes_before
      FROM (SELECT seq, message_id FROM delivery INDEXED BY delivery_queue
            WHERE mesh = :mesh AND member = :member AND state = 'open' AND seq > :after AND expires_at > :now
            ORDER BY seq LIMIT :limit) AS next
      LEFT JOIN message ON message.seq = next.seq) AS sized
WHERE bytes_before < :bytes_max
ORDER BY seq

-- name: delivered_before
-- Messages that were acknowledged before and are still kept, for a device that lost its own copy.
SELECT seq, message_id, sender, event_id, accepted_at, event, digest
FROM (SELECT next.seq, next.message_id, message.sender, message.event_id, message.accepted_at, message.event, message.digest,
             sum(coalesce(message.size, 0)) OVER (ORDER BY next.seq) - coalesce(message.size, 0) AS bytes_before
      FROM (SELECT seq, message_id FROM delivery
            WHERE mesh = :mesh AND member = :member AND state = 'delivered' AND seq > :after AND seq <= :until
            ORDER BY seq LIMIT :limit) AS next
      LEFT JOIN message ON message.seq = next.seq) AS sized
WHERE bytes_before < :bytes_max
ORDER BY seq

-- name: waiting_since
-- Members whose queues grew after a position. Not DISTINCT: SQLite would read all queues in their order for it.
SELECT mesh, member FROM delivery WHERE seq > :after ORDER BY seq LIMIT :limit

-- name: changed_since
-- Authors whose snapshots came after a position; not DISTINCT either.
SELECT author FROM snapshot WHERE seq > :after ORDER BY seq LIMIT :limit

-- name: oldest
-- By the first message of each queue, because members are few compared with messages.
SELECT message.accepted_at FROM message
WHERE message.seq = (
    SELECT min((
        SELECT delivery.seq FROM delivery INDEXED BY delivery_queue
        WHERE delivery.mesh = member.mesh AND delivery.member = member.member AND delivery.state = 'open'
          AND delivery.is_receipt = 0
        ORDER BY delivery.seq LIMIT 1
    ))
    FROM member WHERE member.queue_count > 0
)

-- name: depths
-- Every queue that is not empty: how much waits, since when, and how much has expired and waits for the sweep.
SELECT member.mesh, member.member, member.name, member.queue_count,
       sum(delivery.is_receipt), sum(CASE WHEN delivery.is_receipt = 0 AND delivery.expires_at <= :now THEN 1 ELSE 0 END),
       min(message.accepted_at), sum(message.size)
FROM member
JOIN delivery INDEXED BY delivery_queue ON delivery.mesh = member.mesh AND delivery.member = member.member AND delivery.state = 'open'
LEFT JOIN message ON message.seq = delivery.seq
WHERE (CAST(:mesh AS TEXT) IS NULL OR member.mesh = :mesh)
  AND (CAST(:member AS TEXT) IS NULL OR member.member = :member OR member.name = :member)
GROUP BY member.mesh, member.member, member.name, member.queue_count
ORDER BY member.queue_count DESC, member.mesh, member.member

-- name: named
SELECT member FROM member WHERE (CAST(:mesh AS TEXT) IS NULL OR mesh = :mesh) AND (member = :member OR name = :member) LIMIT 1

-- name: mesh
SELECT mesh FROM mesh WHERE mesh = :mesh

-- name: message
SELECT mesh, seq, client_message_id, sender, event_id, kind FROM message WHERE message_id = :message_id

-- name: fates
-- The fates of a sender's own messages after a position. The condition repeats the index's word for word, so that it is used.
SELECT seq, at, kind, client_message_id, message_id, event_id, recipient, recipients, was_stored, reason
FROM history
WHERE mesh = :mesh AND sender = :sender AND seq > :after AND seq <= :until
  AND (kind IN ('delivered', 'expired', 'dropped', 'quarantined', 'moderated') OR (kind = 'accepted' AND reason IS NOT NULL))
ORDER BY seq
LIMIT :limit

-- name: send
SELECT event_id, message_id, seq, first_seen_at FROM dedupe
WHERE mesh = :mesh AND sender = :sender AND client_message_id = :client_message_id
