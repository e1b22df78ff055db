-- Messages that were given up are counted and listed from the index alone: everybody who looks at the daemon asks for their
-- number. Administration and receipts are not among them: nobody can send those again.
CREATE INDEX operation_log_given_up ON operation_log (sequence) WHERE status = 'dead' AND destination_kind IN ('dm', 'topic');
