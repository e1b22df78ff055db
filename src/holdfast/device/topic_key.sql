-- name: keep_made
INSERT INTO topic_key (topic, key_epoch, key, source, kept_at) VALUES (:topic, :key_epoch, :key, 'made', :now)
ON CONFLICT (topic, key_epoch, key) DO NOTHING

-- name: keep_granted
-- A key that was made here is in force only when the relay returns it as a grant: another keeper may have been faster.
INSERT INTO topic_key (topic, key_epoch, key, source, kept_at) VALUES (:topic, :key_epoch, :key, 'granted', :now)
ON CONFLICT (topic, key_epoch, key) DO UPDATE SET source = 'granted', kept_at = excluded.kept_at
WHERE topic_key.source = 'made'

-- name: key_in_force
SELECT key FROM topic_key
WHERE topic = :topic AND key_epoch = :key_epoch AND source = 'granted'
ORDER BY kept_at DESC, key
LIMIT 1

-- name: keys_of_epoch
SELECT key FROM topic_key WHERE topic = :topic AND key_epoch = :key_epoch ORDER BY kept_at DESC, key

-- name: count_keys
SELECT count(*), count(*) FILTER (WHERE source = 'granted') FROM topic_key
