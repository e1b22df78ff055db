-- name: every_version_was_told_once
-- A version of a document that is kept here was told to the history exactly once, as far back as that goes.
SELECT snapshot.event_id, count(entry.seq)
FROM snapshot
LEFT JOIN history AS entry ON entry.kind = 'snapshot' AND entry.event_id = snapshot.event_id
WHERE (SELECT anchor_seq FROM history_head) = 0
GROUP BY snapshot.event_id
HAVING count(entry.seq) <> 1

-- name: what_is_gone_was_told
-- A version is given up iff the history says so once, unless something newer came since.
SELECT snapshot.event_id, snapshot.status, count(entry.seq)
FROM snapshot
LEFT JOIN history AS entry ON entry.kind = 'compacted' AND entry.event_id = snapshot.event_id
WHERE (SELECT anchor_seq FROM history_head) = 0
GROUP BY snapshot.event_id, snapshot.status
HAVING count(entry.seq) > 1 OR (snapshot.status = 'gone' AND count(entry.seq) <> 1)
    OR (snapshot.status = 'current' AND count(entry.seq) <> 0)

-- name: what_is_offered_waits_in_the_log
-- A snapshot that is to be offered to a relay is in the operation log for it, and that has no answer yet.
SELECT sighting.relay, sighting.event_id
FROM sighting
JOIN snapshot ON snapshot.event_id = sighting.event_id
WHERE sighting.state = 'offered' AND NOT EXISTS (
    SELECT 1 FROM operation_log
    WHERE operation_log.destination_kind = 'feed' AND operation_log.destination_ref = sighting.relay
      AND operation_log.status IN ('pending', 'inflight') AND operation_log.blob = snapshot.event
)

-- name: what_is_current_is_at_every_relay_or_on_its_way
-- A version that is current here is known to be at every relay that is followed, or to be offered, or refused.
SELECT snapshot.event_id, feed_relay.relay
FROM snapshot
CROSS JOIN feed_relay
LEFT JOIN sighting ON sighting.relay = feed_relay.relay AND sighting.event_id = snapshot.event_id
WHERE snapshot.status = 'current' AND feed_relay.seq IS NOT NULL AND sighting.event_id IS NULL

-- name: what_is_known_of_relays_is_of_relays
-- What is known of a snapshot at a relay, or is being fetched, is of a relay that is followed.
SELECT known.relay
FROM (SELECT relay FROM sighting UNION SELECT relay FROM staged_snapshot) AS known
LEFT JOIN feed_relay ON feed_relay.relay = known.relay
WHERE feed_relay.relay IS NULL

-- name: there_is_an_author_of_documents
-- Documents belong to the author of this home.
SELECT event_id FROM snapshot WHERE NOT EXISTS (SELECT 1 FROM author)

-- name: one_relay_is_the_homes_own
-- A home has at most one relay of its own.
SELECT count(*) FROM feed_relay WHERE is_home = 1 HAVING count(*) > 1
