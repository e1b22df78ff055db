-- Somebody looks for messages: of a sender, of a topic, page by page, however many there are. There is none for a mesh alone:
-- every accept would pay for it.
CREATE INDEX message_by_sender ON message (mesh, sender, seq);
CREATE INDEX message_by_topic ON message (mesh, destination_ref, seq) WHERE destination_kind = 'topic';

-- Why something ended otherwise than by delivery: few entries, found by their message.
CREATE INDEX history_decisions ON history (message_id, seq) WHERE kind IN ('moderated', 'quarantined', 'dropped');

-- Documents in conflict are few among all.
CREATE INDEX document_conflict ON document (author, d) WHERE currents > 1;
