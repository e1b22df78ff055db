"""The questions of the pipeline's tables, asked of DuckDB: the same rows from the same files, as somebody would who has only them.

`history` is a view of the lake's own files; a table may use those above it. What has no counterpart here is what no query of a
few lines answers: chains of hashes, signatures, dominance between clocks, the comparison with the relay's own state.
"""

QUESTIONS = {
    "extent": """
        SELECT origin, log_id, min(seq) AS first_seq, max(seq) AS last_seq, max("at") AS last_at,
            arg_max(chain, seq) AS last_chain FROM history GROUP BY ALL
    """,
    "applied": """
        SELECT origin, log_id, seq, "at", mesh, message_id, client_message_id, sender, recipient, event_id, kind, reason, day
        FROM history WHERE origin LIKE 'device:%' AND kind IN ('applied', 'parked')
    """,
    "audit_log": """
        SELECT day, origin, log_id, seq, "at", mesh, coalesce(sender, destination_ref) AS actor, kind, decode(detail) AS detail
        FROM history WHERE (origin LIKE 'relay:%' AND kind IN ('admin', 'restored'))
            OR (origin LIKE 'relay:%' AND kind = 'moderated' AND recipient IS NULL)
            OR kind = 'pruned' OR (origin LIKE 'device:%' AND kind IN ('aborted', 'restored'))
    """,
    "member_key": """
        WITH asked AS (
            SELECT *, from_json(decode(detail), '{"action": "VARCHAR", "member": "VARCHAR", "key": "VARCHAR", "invite": "VARCHAR",
                "agreement": "VARCHAR"}') AS asked
            FROM history WHERE origin LIKE 'relay:%' AND kind = 'admin' AND destination_kind IS DISTINCT FROM 'consumer'
        )
        SELECT origin, log_id, seq, "at", mesh, asked.member, asked."key", asked.invite, asked.agreement FROM asked
        WHERE asked.action IN ('create_mesh', 'add_member', 'join', 'rotate_member_key', 'revoke_member')
            AND asked.member IS NOT NULL
    """,
    "receipt": """
        WITH told AS (
            SELECT *, from_json(decode(detail), '{"pubkey": "VARCHAR", "tags": [["VARCHAR"]]}') AS event
            FROM history WHERE origin LIKE 'relay:%' AND kind = 'receipt'
        ),
        line AS (SELECT *, unnest(list_filter(event.tags, lambda tag: tag[1] = 'r')) AS tag FROM told)
        SELECT origin, log_id, seq, "at", mesh, message_id, event_id AS receipt_event_id, sender AS recipient,
            destination_ref AS sender, event.pubkey AS pubkey, unhex(tag[2]) AS event_id, tag[3] = 'true' AS was_stored,
            tag[4] AS status, day FROM line
    """,
    "usage": """
        WITH counted AS (
            SELECT origin, mesh, "at", sender AS member, (kind = 'accepted')::BIGINT AS sent,
                CASE WHEN kind = 'accepted' THEN size ELSE 0 END AS sent_bytes,
                CASE WHEN kind = 'accepted' THEN len(recipients) ELSE 0 END AS recipients,
                (kind = 'receipt')::BIGINT AS receipts, 0 AS received, 0 AS missed
            FROM history WHERE origin LIKE 'relay:%' AND kind IN ('accepted', 'receipt') AND sender IS NOT NULL
            UNION ALL
            SELECT origin, mesh, "at", recipient, 0, 0, 0, 0, (kind = 'delivered')::BIGINT, (kind <> 'delivered')::BIGINT
            FROM history WHERE origin LIKE 'relay:%' AND recipient IS NOT NULL
                AND kind IN ('delivered', 'expired', 'dropped', 'quarantined', 'moderated')
        )
        SELECT date_trunc('minute', "at")::DATE AS day, origin, mesh, member, date_trunc('minute', "at") AS minute, sum(sent),
            sum(sent_bytes), sum(recipients), sum(receipts), sum(received), sum(missed)
        FROM counted WHERE mesh IS NOT NULL GROUP BY ALL
    """,
    "fate": """
        WITH opened AS (
            SELECT origin, log_id, mesh, message_id, unnest(recipients) AS one, kind, sender, client_message_id, event_id,
                destination_kind, destination_ref, size, seq AS accepted_seq, "at" AS accepted_at
            FROM history WHERE origin LIKE 'relay:%' AND kind IN ('accepted', 'receipt')
        ),
        closed AS (
            SELECT origin, message_id, recipient, min(seq) AS closed_seq, arg_min("at", seq) AS closed_at,
                arg_min(kind, seq) AS outcome, arg_min(was_stored, seq) AS was_stored, arg_min(reason, seq) AS reason
            FROM history WHERE origin LIKE 'relay:%' AND recipient IS NOT NULL
                AND kind IN ('delivered', 'expired', 'dropped', 'quarantined', 'moderated')
            GROUP BY ALL
        )
        SELECT opened.* EXCLUDE (one), one.member AS recipient, coalesce(closed_seq, accepted_seq) AS closed_seq,
            coalesce(closed_at, accepted_at) AS closed_at, was_stored, reason,
            CASE WHEN one.outcome <> 'queued' THEN one.outcome ELSE coalesce(closed.outcome, 'open') END AS outcome
        FROM opened LEFT JOIN closed ON opened.origin = closed.origin AND opened.message_id = closed.message_id
            AND one.member = closed.recipient
    """,
    "message_fate": "SELECT *, closed_at::DATE AS day FROM fate WHERE outcome <> 'open'",
    "fate_open": "SELECT * FROM fate WHERE outcome = 'open'",
    "delivery_slo": """
        SELECT date_trunc('hour', accepted_at)::DATE AS day, mesh, date_trunc('hour', accepted_at) AS accepted_hour, was_stored,
            floor(32 * log2(greatest(1, epoch_us(closed_at) - epoch_us(accepted_at))))::INT AS bucket, count(*) AS deliveries
        FROM message_fate WHERE outcome = 'delivered' AND kind = 'accepted' AND was_stored IS NOT NULL GROUP BY ALL
    """,
    "sender": """
        WITH opened AS (
            SELECT origin, "sequence", seq AS enqueued_seq, "at" AS enqueued_at, mesh, epoch, client_message_id,
                destination_kind, destination_ref, size
            FROM history WHERE origin LIKE 'device:%' AND kind = 'enqueued'
        ),
        tried AS (
            SELECT origin, "sequence", count(*) AS attempts, arg_max(reason, seq) AS last_reason
            FROM history WHERE origin LIKE 'device:%' AND kind = 'attempted' GROUP BY ALL
        ),
        settled AS (
            SELECT origin, "sequence", seq AS closed_seq, "at" AS closed_at, kind AS status, message_id, event_id, reason
            FROM history WHERE origin LIKE 'device:%' AND kind IN ('relayed', 'dead', 'aborted')
        )
        SELECT * FROM opened LEFT JOIN tried USING (origin, "sequence") LEFT JOIN settled USING (origin, "sequence")
    """,
    "sender_fate": "SELECT *, closed_at::DATE AS day FROM sender WHERE status IS NOT NULL",
    "sender_open": "SELECT * FROM sender WHERE status IS NULL",
    "retry_profile": """
        SELECT day, origin, destination_kind, status, last_reason, coalesce(attempts, 0) AS attempts, count(*) AS sends,
            sum(epoch_us(closed_at) - epoch_us(enqueued_at)) AS waited_us
        FROM sender_fate GROUP BY ALL
    """,
    "sequence_run": """
        WITH accepted AS (
            SELECT DISTINCT origin, mesh, sender, epoch, "sequence" FROM history
            WHERE origin LIKE 'relay:%' AND kind IN ('accepted', 'receipt', 'admin') AND "sequence" IS NOT NULL
        ),
        numbered AS (
            SELECT *, "sequence" - row_number() OVER (PARTITION BY origin, mesh, sender, epoch ORDER BY "sequence") AS island
            FROM accepted
        )
        SELECT origin, mesh, sender, epoch, island, min("sequence") AS first, max("sequence") AS last FROM numbered GROUP BY ALL
    """,
}
"""By the name of the table; `fate` and `sender` are what their tables are parts of."""

UNLIKE = ("audit_log", "sequence_run", "retry_profile")
"""Questions whose rows are not counted against the lake's: they leave out what devices add, or cut rows another way."""
