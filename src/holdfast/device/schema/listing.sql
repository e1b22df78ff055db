-- Documents are counted, and those in conflict found, without their rows being read.
CREATE INDEX snapshot_current ON snapshot (d, o) WHERE status = 'current';

-- The keys that others have shared are found without reading the whole inbox; few messages have anything beside their text.
CREATE INDEX inbox_by_object ON inbox (object_id, arrival) WHERE meta IS NOT NULL;

-- Few snapshots are refused by a relay or wait for it, compared with those that it has.
CREATE INDEX sighting_refused ON sighting (relay, event_id) WHERE state = 'refused';
CREATE INDEX sighting_offered ON sighting (relay, event_id) WHERE state = 'offered';

-- Dead and aborted rows are listed without reading all that was delivered.
CREATE INDEX operation_log_failed ON operation_log (sequence) WHERE status IN ('dead', 'aborted');
