-- Somebody looks through what one sender or one topic brought, page by page, and at what was parked.
CREATE INDEX inbox_by_sender ON inbox (sender, arrival);
CREATE INDEX inbox_by_topic ON inbox (topic, arrival) WHERE topic IS NOT NULL;
CREATE INDEX inbox_parked ON inbox (arrival) WHERE parked_at IS NOT NULL AND applied_at IS NULL;
