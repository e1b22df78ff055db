-- name: no_id_without_its_message
-- An id that was used has its message, unless the message was pruned and the id's row says so.
SELECT dedupe.mesh, dedupe.sender, dedupe.client_message_id
FROM dedupe
LEFT JOIN message ON message.message_id = dedupe.message_id
WHERE (message.message_id IS NULL) <> (dedupe.history_available = 0)

-- name: no_message_without_its_id
-- A message's id is remembered, unless the history says that it was forgotten when it expired.
SELECT message.seq, message.message_id
FROM message
LEFT JOIN dedupe ON dedupe.message_id = message.message_id
LEFT JOIN history AS forgotten ON forgotten.kind = 'dedupe_expired' AND forgotten.message_id = message.message_id
WHERE dedupe.message_id IS NULL AND forgotten.seq IS NULL AND message.seq > (SELECT anchor_seq FROM history_head)

-- name: every_message_is_in_the_history
-- A message has its entry in the history at its own position.
SELECT message.seq, message.message_id
FROM message
LEFT JOIN history AS entry
    ON entry.seq = message.seq AND entry.message_id = message.message_id AND entry.event_id = message.event_id
   AND entry.kind IN ('accepted', 'receipt', 'admin')
WHERE entry.seq IS NULL AND message.seq > (SELECT anchor_seq FROM history_head)

-- name: every_accept_left_its_id
-- An accepted entry has its id in the dedupe table, until the history says that the id was forgotten.
SELECT entry.seq, entry.message_id
FROM history AS entry
LEFT JOIN dedupe ON dedupe.message_id = entry.message_id AND dedupe.seq = entry.seq
LEFT JOIN history AS forgotten ON forgotten.kind = 'dedupe_expired' AND forgotten.message_id = entry.message_id
WHERE entry.kind IN ('accepted', 'receipt', 'admin') AND entry.message_id IS NOT NULL AND dedupe.message_id IS NULL AND forgotten.seq IS NULL

-- name: deliveries_have_their_message
-- A delivery that is kept has its message.
SELECT delivery.seq, delivery.member
FROM delivery
LEFT JOIN message ON message.seq = delivery.seq AND message.message_id = delivery.message_id
WHERE message.seq IS NULL

-- name: mentions_have_their_message
-- A mention has its message.
SELECT mention.seq, mention.member
FROM mention
LEFT JOIN message ON message.seq = mention.seq AND message.message_id = mention.message_id
WHERE message.seq IS NULL

-- name: queue_counts_are_right
-- A member's queue count is the number of its open deliveries without receipts.
SELECT member.mesh, member.member, member.queue_count, count(delivery.seq)
FROM member
LEFT JOIN delivery ON delivery.mesh = member.mesh AND delivery.member = member.member
                  AND delivery.state = 'open' AND delivery.is_receipt = 0
GROUP BY member.mesh, member.member, member.queue_count
HAVING member.queue_count <> count(delivery.seq)

-- name: queues_expire_when_they_say
-- Nothing in a queue expires before the time at which the sweep will look into that queue.
SELECT member.mesh, member.member, member.expires_from, min(delivery.expires_at)
FROM member
JOIN delivery ON delivery.mesh = member.mesh AND delivery.member = member.member AND delivery.state = 'open'
GROUP BY member.mesh, member.member, member.expires_from
HAVING member.expires_from IS NULL OR member.expires_from > min(delivery.expires_at)

-- name: closed_deliveries_have_their_entry
-- A closed delivery has exactly one closing entry in the history, of the same kind as its state.
SELECT delivery.seq, delivery.member, delivery.state, count(entry.seq)
FROM delivery
LEFT JOIN history AS entry
    ON entry.kind = delivery.state AND entry.message_id = delivery.message_id AND entry.recipient = delivery.member
WHERE delivery.state <> 'open' AND delivery.seq > (SELECT anchor_seq FROM history_head)
GROUP BY delivery.mesh, delivery.member, delivery.seq, delivery.state
HAVING count(entry.seq) <> 1

-- name: revoked_members_have_no_queue
-- A revoked member has nothing waiting, no current key and no subscription.
SELECT member.mesh, member.member
FROM member
WHERE member.status = 'revoked'
  AND (member.queue_count <> 0
       OR EXISTS (SELECT 1 FROM member_key
                  WHERE member_key.mesh = member.mesh AND member_key.member = member.member AND member_key.until IS NULL)
       OR EXISTS (SELECT 1 FROM subscription
                  WHERE subscription.mesh = member.mesh AND subscription.member = member.member))

-- name: active_members_have_one_key
-- An active member has exactly one current key.
SELECT member.mesh, member.member, count(member_key.pubkey)
FROM member
LEFT JOIN member_key ON member_key.mesh = member.mesh AND member_key.member = member.member AND member_key.until IS NULL
WHERE member.status = 'active'
GROUP BY member.mesh, member.member
HAVING count(member_key.pubkey) <> 1

-- name: what_was_receipted_is_closed
-- A delivery with a receipt is closed, and is not a receipt itself.
SELECT mesh, member, seq, state FROM delivery WHERE receipted_at IS NOT NULL AND (state = 'open' OR is_receipt = 1)

-- name: acknowledged_deliveries_say_whether_they_waited
-- An acknowledged delivery says whether it had waited or was sent live.
SELECT mesh, member, seq FROM delivery WHERE state = 'delivered' AND was_stored IS NULL

-- name: sequences_are_remembered
-- The greatest accepted sequence of every device epoch is recorded.
SELECT entry.mesh, entry.sender, entry.epoch, max(entry.sequence), sender_epoch.sequence
FROM history AS entry
LEFT JOIN sender_epoch
    ON sender_epoch.mesh = entry.mesh AND sender_epoch.sender = entry.sender AND sender_epoch.epoch = entry.epoch
WHERE entry.kind IN ('accepted', 'receipt', 'admin') AND entry.epoch IS NOT NULL
GROUP BY entry.mesh, entry.sender, entry.epoch, sender_epoch.sequence
HAVING sender_epoch.sequence IS NULL OR sender_epoch.sequence < max(entry.sequence)

-- name: every_snapshot_is_in_the_history
-- A snapshot has its entry in the history at its own position.
SELECT snapshot.seq
FROM snapshot
LEFT JOIN history AS entry
    ON entry.seq = snapshot.seq AND entry.event_id = snapshot.event_id AND entry.kind = 'snapshot'
WHERE entry.seq IS NULL AND snapshot.seq > (SELECT anchor_seq FROM history_head)

-- name: every_snapshot_of_the_history_is_kept
-- A snapshot entry of the history has its row in the feed, from the first replayable position on.
SELECT entry.seq
FROM history AS entry
LEFT JOIN snapshot ON snapshot.seq = entry.seq
WHERE entry.kind = 'snapshot' AND snapshot.seq IS NULL AND entry.seq >= (SELECT min_seq FROM feed)

-- name: payloads_go_by_an_entry
-- A snapshot's payload is gone exactly if the history says that it was dropped, as far back as the history goes.
SELECT snapshot.seq
FROM snapshot
LEFT JOIN history AS entry
    ON entry.kind = 'compacted' AND entry.reason = 'payload' AND entry.event_id = snapshot.event_id
WHERE (snapshot.event IS NULL) <> (entry.seq IS NOT NULL) AND (SELECT anchor_seq FROM history_head) = 0

-- name: what_superseded_a_snapshot_is_later
-- A snapshot is superseded by itself, or by a later one of its own document.
SELECT snapshot.seq, snapshot.superseded_seq
FROM snapshot
LEFT JOIN snapshot AS newer
    ON newer.seq = snapshot.superseded_seq AND newer.author = snapshot.author AND newer.d = snapshot.d
WHERE snapshot.superseded_seq IS NOT NULL AND newer.seq IS NULL

-- name: documents_know_what_is_current
-- A document's row has the right counts of its current snapshots, and of those that are not deletions.
SELECT document.author, document.d, document.currents, document.puts
FROM document
LEFT JOIN snapshot
    ON snapshot.author = document.author AND snapshot.d = document.d AND snapshot.superseded_seq IS NULL
GROUP BY document.author, document.d, document.currents, document.puts
HAVING document.currents <> count(snapshot.seq)
    OR (document.currents > 0 AND document.puts <> count(CASE WHEN snapshot.o = 'put' THEN 1 END))

-- name: snapshots_have_their_document
-- A snapshot has its document's row.
SELECT snapshot.seq, snapshot.d
FROM snapshot
LEFT JOIN document ON document.author = snapshot.author AND document.d = snapshot.d
WHERE document.d IS NULL
