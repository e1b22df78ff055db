-- name: place
SELECT "end", size, line, finished FROM hook_spool

-- name: keep_place
UPDATE hook_spool SET "end" = :end, size = :size, line = :line, finished = :finished WHERE one = 1
