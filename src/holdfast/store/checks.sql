-- name: history_has_no_holes
-- Positions follow one another without a hole, from the anchor to the head.
SELECT found.seq, found.previous
FROM (SELECT seq, lag(seq) OVER (ORDER BY seq) AS previous FROM history) AS found
WHERE found.seq <> found.previous + 1
   OR (found.previous IS NULL AND found.seq <> (SELECT anchor_seq + 1 FROM history_head))

-- name: head_is_the_last_entry
-- The head has the position, time and chain of the last entry; with no entries it is the anchor.
SELECT head.seq, last.seq
FROM history_head AS head
LEFT JOIN history AS last ON last.seq = (SELECT max(seq) FROM history)
WHERE (last.seq IS NULL AND (head.seq <> head.anchor_seq OR head.chain <> head.anchor_chain))
   OR (last.seq IS NOT NULL AND (head.seq <> last.seq OR head.at <> last.at OR head.chain <> last.chain))

-- name: history_time_never_goes_back
-- An entry is never earlier than the one before it.
SELECT found.seq, found.at, found.previous_at
FROM (SELECT seq, at, lag(at) OVER (ORDER BY seq) AS previous_at FROM history) AS found
WHERE found.at < found.previous_at

-- name: every_schema_step_was_taken_once
-- The steps of the schema are recorded without a hole.
SELECT max(version), count(*) FROM holdfast_migration HAVING max(version) <> count(*) OR min(version) <> 1
