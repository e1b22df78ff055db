-- name: relays
SELECT relay, pubkey, is_home, log_id, seq FROM feed_relay ORDER BY is_home DESC, added_at, relay

-- name: add_relay
INSERT INTO feed_relay (relay, pubkey, is_home, added_at) VALUES (:relay, :pubkey, :is_home, :now)
ON CONFLICT (relay) DO NOTHING

-- name: move_home
-- A home has one home relay; the former one stays as an ordinary relay.
UPDATE feed_relay SET is_home = CASE WHEN relay = :relay THEN 1 ELSE 0 END

-- name: recognise
UPDATE feed_relay SET pubkey = :pubkey WHERE relay = :relay AND pubkey IS NULL

-- name: checkpoint
-- A checkpoint moves forward only, or to another log of the same relay.
UPDATE feed_relay SET log_id = :log_id, seq = :seq
WHERE relay = :relay AND (seq IS NULL OR log_id <> :log_id OR seq < :seq)

-- name: forget_checkpoint
UPDATE feed_relay SET log_id = NULL, seq = NULL WHERE relay = :relay

-- name: forget_sightings
-- Offers that wait stay.
DELETE FROM sighting WHERE relay = :relay AND state <> 'offered'

-- name: stage
INSERT INTO staged_snapshot (relay, event_id, event) VALUES (:relay, :event_id, :event)
ON CONFLICT (relay, event_id) DO NOTHING

-- name: unstage
DELETE FROM staged_snapshot WHERE relay = :relay

-- name: staged
SELECT event_id, event FROM staged_snapshot
WHERE relay = :relay AND event_id > :after ORDER BY event_id LIMIT :limit

-- name: see
-- A relay that brings a snapshot has it, whatever was noted before.
INSERT INTO sighting (relay, event_id, state)
SELECT :relay, event_id, 'there' FROM snapshot WHERE event_id = :event_id
ON CONFLICT (relay, event_id) DO UPDATE SET state = 'there', seq = NULL WHERE sighting.state <> 'offered'

-- name: lacking
-- Current snapshots that a relay is not known to have and that do not wait for it; in pages, because it may be all of them.
SELECT snapshot.number, snapshot.event_id, snapshot.d, snapshot.event FROM snapshot
WHERE snapshot.status = 'current' AND snapshot.number > :after
  AND NOT EXISTS (SELECT 1 FROM sighting WHERE sighting.relay = :relay AND sighting.event_id = snapshot.event_id)
ORDER BY snapshot.number
LIMIT :limit

-- name: lacking_of_document
SELECT event_id, d, event FROM snapshot
WHERE d = :d AND status = 'current'
  AND NOT EXISTS (SELECT 1 FROM sighting WHERE sighting.relay = :relay AND sighting.event_id = snapshot.event_id)
ORDER BY number

-- name: count_offered
SELECT count(*) FROM sighting
JOIN snapshot ON snapshot.event_id = sighting.event_id
WHERE sighting.relay = :relay AND sighting.state = 'offered' AND snapshot.status = 'current'

-- name: forget_offers
DELETE FROM sighting WHERE relay = :relay AND state = 'offered'

-- name: offer
INSERT INTO sighting (relay, event_id, state) VALUES (:relay, :event_id, 'offered')
ON CONFLICT (relay, event_id) DO UPDATE SET state = 'offered', seq = NULL

-- name: answered
UPDATE sighting SET state = :state, seq = :seq WHERE relay = :relay AND event_id = :event_id

-- name: dominated
-- Versions that a relay called dominated, now that everything it has up to that position has come.
SELECT sighting.event_id, sighting.seq FROM sighting
WHERE sighting.relay = :relay AND sighting.state = 'dominated' AND sighting.seq <= :seq

-- name: waiting
-- Snapshots that are due. Their clocks tell which is newer, so one that has to wait holds up no other. A wait that is longer than
-- any we set was computed from a wrong clock, and is over. Both statuses are named because the index has both: without it, every
-- row that was ever sent would be read.
SELECT sequence, length(blob) FROM operation_log
WHERE destination_kind = 'feed' AND destination_ref = :relay AND status IN ('pending', 'inflight') AND status = 'pending'
  AND (next_attempt_at <= :now OR next_attempt_at > :now + :wait_max)
ORDER BY sequence
LIMIT :limit

-- name: next_attempt_at
SELECT min(next_attempt_at) FROM operation_log
WHERE destination_kind = 'feed' AND destination_ref = :relay AND status IN ('pending', 'inflight') AND status = 'pending'

-- name: in_flight
SELECT sequence FROM operation_log
WHERE destination_kind = 'feed' AND destination_ref = :relay AND status = 'inflight'
ORDER BY sequence
LIMIT :limit

-- name: count_refused
SELECT count(*) FROM sighting
JOIN snapshot ON snapshot.event_id = sighting.event_id
WHERE sighting.relay = :relay AND sighting.state = 'refused' AND snapshot.status = 'current'

-- name: count_waiting
SELECT count(*) FROM operation_log
WHERE destination_kind = 'feed' AND destination_ref = :relay AND status IN ('pending', 'inflight')
