-- name: create
-- One row per step taken. The program's name keeps a relay from opening a device's file.
CREATE TABLE holdfast_migration (
    version    INTEGER PRIMARY KEY,
    program    TEXT NOT NULL,
    name       TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT

-- name: record
INSERT INTO holdfast_migration (version, program, name, applied_at) VALUES (:version, :program, :name, :applied_at)

-- name: version
SELECT max(version), min(program) FROM holdfast_migration

-- name: owner
SELECT min(program) FROM holdfast_migration
