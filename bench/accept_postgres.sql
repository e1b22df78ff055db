-- An accept in PostgreSQL's own language: the same five tables with the same keys, one call and one commit for each message.
-- It does less than the relay: positions come from a counter, so they are not in the order of commit, and nothing is hashed
-- or verified.
CREATE TABLE dedupe (
    mesh text, sender text, client_message_id text, event_id bytea NOT NULL, message_id text NOT NULL, seq bigint NOT NULL,
    first_seen_at bigint NOT NULL, expires_at bigint, PRIMARY KEY (mesh, sender, client_message_id)
);
CREATE INDEX dedupe_by_seq ON dedupe (seq);
CREATE INDEX dedupe_expiry ON dedupe (expires_at);
CREATE TABLE history (
    seq bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, at bigint NOT NULL, kind text NOT NULL, mesh text, message_id text,
    client_message_id text, sender text, recipients text NOT NULL, event_id bytea, size bigint
);
CREATE TABLE message (
    message_id text NOT NULL UNIQUE, mesh text NOT NULL, sender text NOT NULL, client_message_id text NOT NULL,
    event_id bytea NOT NULL, seq bigint PRIMARY KEY, event text NOT NULL, size bigint NOT NULL, accepted_at bigint NOT NULL
);
CREATE INDEX message_by_time ON message (accepted_at, seq);
CREATE INDEX message_by_event ON message (event_id);
CREATE TABLE delivery (
    mesh text, member text, seq bigint, message_id text NOT NULL, state text NOT NULL, expires_at bigint NOT NULL,
    PRIMARY KEY (mesh, member, seq)
);
CREATE INDEX delivery_by_seq ON delivery (seq);
CREATE INDEX delivery_queue ON delivery (mesh, member, seq) WHERE state = 'open';
CREATE INDEX delivery_expiry ON delivery (expires_at) WHERE state = 'open';
CREATE TABLE sender_epoch (
    mesh text, sender text, epoch bytea, sequence bigint NOT NULL, PRIMARY KEY (mesh, sender, epoch)
);

CREATE FUNCTION accept(
    a_mesh text, a_sender text, a_member text, a_client_message_id text, a_event_id bytea, a_epoch bytea, a_sequence bigint,
    a_event text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    now_at bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    name text := gen_random_uuid()::text;
    place bigint;
BEGIN
    SELECT seq INTO place FROM dedupe
    WHERE mesh = a_mesh AND sender = a_sender AND client_message_id = a_client_message_id;
    IF place IS NOT NULL THEN
        RETURN place;
    END IF;
    INSERT INTO history (at, kind, mesh, message_id, client_message_id, sender, recipients, event_id, size)
    VALUES (now_at, 'accepted', a_mesh, name, a_client_message_id, a_sender, '[["' || a_member || '","queued"]]', a_event_id,
            length(a_event))
    RETURNING seq INTO place;
    INSERT INTO dedupe VALUES (a_mesh, a_sender, a_client_message_id, a_event_id, name, place, now_at, now_at + 31622400000000);
    INSERT INTO message
    VALUES (name, a_mesh, a_sender, a_client_message_id, a_event_id, place, a_event, length(a_event), now_at);
    INSERT INTO delivery VALUES (a_mesh, a_member, place, name, 'open', now_at + 604800000000);
    INSERT INTO sender_epoch VALUES (a_mesh, a_sender, a_epoch, a_sequence)
    ON CONFLICT (mesh, sender, epoch) DO UPDATE SET sequence = excluded.sequence
    WHERE sender_epoch.sequence < excluded.sequence;
    RETURN place;
END $$;
