"""The questions of the pipeline's tables, asked of DuckDB: the same rows from the same files, as somebody would who has only them.

`history` is a view of the lake's own files, and so is `current_snapshot`; a table may use those above it. What has no counterpart
here is what no query of a few lines answers: chains of hashes (`chain_break`), signatures (`receipt_forged`), dominance between clocks
(`current_snapshot`), the comparison with the relay's own state (`orphan`).
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
            OR (kind = 'pruned' AND message_id IS NULL AND recipient IS NULL) OR (origin LIKE 'device:%' AND kind IN ('aborted', 'restored'))
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
    "fate_reopened": """
        WITH restored AS (
            SELECT DISTINCT origin, unhex(hex(detail)[1:32]) AS old_log_id FROM history WHERE kind = 'restored'
        )
        SELECT fate.* FROM fate JOIN restored ON fate.origin = restored.origin AND fate.log_id = restored.old_log_id
        WHERE fate.outcome <> 'open'
    """,
    "stuck": """
        WITH latest AS (SELECT max("at") AS "at" FROM history),
        waiting AS (
            SELECT origin, mesh, recipient AS member, accepted_at AS since,
                CASE WHEN accepted_at < latest."at" - INTERVAL 8 DAY THEN 'overdue' ELSE 'recipient_away' END AS cause
            FROM fate_open, latest
            UNION ALL
            SELECT origin, mesh, split_part(origin, '/', 2), enqueued_at, 'unsent:' || coalesce(last_reason, 'not_tried')
            FROM sender_open
        )
        SELECT origin, mesh, member, cause, count(*) AS count, min(since) AS oldest_at, max(since) AS newest_at
        FROM waiting GROUP BY ALL
    """,
    "anchor_open": """
        WITH anchor AS (
            SELECT origin, log_id, seq, "at", epoch, "sequence", event_id, unhex(hex(detail)[1:32]) AS relay_log_id,
                ('0x' || hex(detail)[33:48])::BIGINT AS relay_seq
            FROM history WHERE origin LIKE 'device:%' AND kind = 'relayed' AND octet_length(detail) = 120
        )
        SELECT anchor.* FROM anchor LEFT JOIN extent ON extent.log_id = relay_log_id
        WHERE extent.last_seq IS NULL OR relay_seq > extent.last_seq
    """,
    "sequence_gap": """
        WITH relayed AS (
            SELECT DISTINCT mesh, split_part(origin, '/', 2) AS sender, epoch, "sequence" FROM history
            WHERE origin LIKE 'device:%' AND kind = 'relayed' AND destination_kind <> 'feed' AND octet_length(detail) = 120
        )
        SELECT relayed.* FROM relayed ANTI JOIN (
            SELECT mesh, sender, epoch, "sequence" FROM history
            WHERE origin LIKE 'relay:%' AND kind IN ('accepted', 'receipt', 'admin')
        ) USING (mesh, sender, epoch, "sequence")
    """,
    "sender_reset": """
        WITH begun AS (
            SELECT origin, mesh, sender, epoch, min(seq) AS seq FROM history
            WHERE origin LIKE 'relay:%' AND kind IN ('accepted', 'receipt', 'admin') AND "sequence" IS NOT NULL GROUP BY ALL
        ),
        numbered AS (SELECT *, row_number() OVER (PARTITION BY origin, mesh, sender ORDER BY seq) AS number FROM begun)
        SELECT * FROM numbered WHERE number > 1
    """,
    "equivocation": """
        SELECT origin, mesh, sender, epoch, "sequence", count(DISTINCT event_id) AS events FROM history
        WHERE origin LIKE 'relay:%' AND kind IN ('accepted', 'receipt', 'admin') AND "sequence" IS NOT NULL
        GROUP BY ALL HAVING count(DISTINCT event_id) > 1
    """,
    "conflict": """
        SELECT origin, author, d, count(*) AS count, max(accepted_at) AS latest_at, list(event_id ORDER BY seq) AS sides
        FROM current_snapshot WHERE NOT is_pruned GROUP BY ALL HAVING count(*) > 1
    """,
    "turn": """
        WITH raw AS (SELECT origin AS device, seq, "at", hex(detail) AS text FROM history WHERE kind = 'hook_received'),
        one AS (SELECT *, 8 + 2 * ('0x' || text[1:8])::INT AS to_agent FROM raw),
        two AS (SELECT *, to_agent + 8 + 2 * ('0x' || text[to_agent + 1:to_agent + 8])::INT AS to_session FROM one),
        three AS (SELECT *, to_session + 8 + 2 * ('0x' || text[to_session + 1:to_session + 8])::INT AS to_type FROM two)
        SELECT device, seq, "at", decode(unhex(text[9:to_agent])) AS agent, decode(unhex(text[to_agent + 9:to_session])) AS session,
            decode(unhex(text[to_session + 9:to_type])) AS event_type
        FROM three
    """,
    "agent_turn": """
        WITH numbered AS (
            SELECT *, sum((event_type = 'user_prompt_submit')::INT) OVER (PARTITION BY device, agent, session ORDER BY "at", seq) AS n
            FROM turn WHERE session <> '' AND session NOT LIKE 'holdfast-doctor-%'
        )
        SELECT device, agent, session, n, min("at") AS began_at, max(CASE event_type WHEN 'agent_stop' THEN "at" END) AS stop_at,
            count(*) FILTER (event_type = 'tool_use') AS tools, count(*) FILTER (event_type = 'error') AS errors
        FROM numbered WHERE n > 0 GROUP BY ALL
    """,
    "agent_session": "SELECT device, agent, session, max(n) AS n, arg_max(stop_at, n) AS stop_at FROM agent_turn GROUP BY ALL",
}
"""By the name of the table; `fate`, `sender` and `turn` are what their tables are parts of."""

UNLIKE = ("audit_log", "sequence_run", "sequence_gap", "retry_profile", "stuck")
"""Questions whose rows are not counted against the lake's: they leave out what devices add or do not explain, or cut rows another way."""

PASSED_ON = {"sequence": "sequence_run", "anchor": "anchor_open"}
"""What is computed for a table here and is a part of its question there."""
