-- name: documents
SELECT author, d, pruned FROM document WHERE (author, d) > (:author, :d) ORDER BY author, d LIMIT :limit

-- name: snapshots
SELECT snapshot.author, snapshot.d, snapshot.seq, snapshot.superseded_seq, snapshot.clock
FROM wanted
JOIN snapshot ON snapshot.author = wanted.author AND snapshot.d = wanted.d
ORDER BY snapshot.author, snapshot.d, snapshot.seq
