-- Documents are counted, and those in conflict found, without their rows being read.
CREATE INDEX snapshot_current ON snapshot (d, o) WHERE status = 'current';

-- The keys that others have shared are found without reading the whole inbox; few messages have anything beside their text.
CREATE INDEX inbox_by_object ON inbox (object_id, arrival) WHERE meta IS NOT NULL;

-- What a relay does not take, and what waits for it, is little of what it has.
CREATE INDEX sighting_refused ON sighting (relay, event_id) WHERE state = 'refused';
CREATE INDEX sighting_offered ON sighting (relay, event_id) WHERE state = 'offered';

-- What was given up is listed without going through everything that was delivered.
CREATE INDEX operation_log_failed ON operation_log (sequence) WHERE status IN ('dead', 'aborted');
