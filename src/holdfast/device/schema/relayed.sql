-- Finds the rows that a restored relay may have lost. Snapshots may have gone to other relays, with logs of their own; the sync
-- with each relay finds out what it lacks.
DROP INDEX operation_log_relayed;
CREATE INDEX operation_log_relayed ON operation_log (log_id, history_id)
    WHERE status = 'done' AND destination_kind <> 'feed';
