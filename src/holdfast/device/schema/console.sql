-- Somebody looks through what one sender or one topic brought, page by page.
CREATE INDEX inbox_by_sender ON inbox (sender, arrival);
CREATE INDEX inbox_by_topic ON inbox (topic, arrival) WHERE topic IS NOT NULL;
