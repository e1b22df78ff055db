-- Finds the head of every lane, that is destination, without reading the rows behind it.
CREATE INDEX operation_log_lane ON operation_log (destination_kind, destination_ref, sequence)
    WHERE status IN ('pending', 'inflight');

-- Finds rows in flight, which are few, after the process that sent them has died.
CREATE INDEX operation_log_inflight ON operation_log (sequence) WHERE status = 'inflight';

-- Finds the last sequence that was signed with an epoch, to compare it with the relay's.
CREATE INDEX operation_log_by_epoch ON operation_log (epoch, sequence) WHERE epoch IS NOT NULL;
