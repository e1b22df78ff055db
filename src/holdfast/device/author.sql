-- name: author
SELECT pubkey, secret, granted_by, kept_at FROM author

-- name: keep_author
-- One home, one author: a second key would split a person's documents.
INSERT INTO author (id, pubkey, secret, granted_by, kept_at) VALUES (1, :pubkey, :secret, :granted_by, :now)
ON CONFLICT (id) DO NOTHING

-- name: grants
-- The messages in which members, or one of them, shared an author's key, the newest first.
SELECT sender, sender_name, sender_pubkey, meta FROM inbox
WHERE object_id = :object_id AND status = 'stored' AND meta IS NOT NULL AND (:member IS NULL OR sender = :member)
ORDER BY arrival DESC
LIMIT :limit
