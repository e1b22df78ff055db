-- Counts dead messages from the index alone, because every look at the daemon asks for their number. Administration and
-- receipts are left out: they cannot be requeued.
CREATE INDEX operation_log_given_up ON operation_log (sequence) WHERE status = 'dead' AND destination_kind IN ('dm', 'topic');
