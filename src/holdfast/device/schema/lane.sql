-- What is still to be sent, by destination: the head of every lane is found without reading what stands behind it.
CREATE INDEX operation_log_lane ON operation_log (destination_kind, destination_ref, sequence)
    WHERE status IN ('pending', 'inflight');

-- What may be on its way: few rows, looked for when the process that sent them is gone.
CREATE INDEX operation_log_inflight ON operation_log (sequence) WHERE status = 'inflight';

-- How far an epoch was used, which is compared with what the relay has of it.
CREATE INDEX operation_log_by_epoch ON operation_log (epoch, sequence) WHERE epoch IS NOT NULL;
