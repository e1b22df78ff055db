-- Which of the keys of an epoch is the current one: keepers may make another under a number that a restored relay has forgotten.
ALTER TABLE directory_topic ADD COLUMN key_id TEXT;
