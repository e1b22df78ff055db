-- A cursor of another log is compared with every restoration of this one, which are few among very many entries.
CREATE INDEX history_restored ON history (seq) WHERE kind = 'restored';
