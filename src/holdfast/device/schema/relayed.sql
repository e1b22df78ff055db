-- What a restored relay may have lost is looked for among what was sent to it. Snapshots go to relays with logs of their own,
-- and whoever follows one of those finds out what it lacks.
DROP INDEX operation_log_relayed;
CREATE INDEX operation_log_relayed ON operation_log (log_id, history_id)
    WHERE status = 'done' AND destination_kind <> 'feed';
