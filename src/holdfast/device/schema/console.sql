-- For pages of the messages of one sender or one topic.
CREATE INDEX inbox_by_sender ON inbox (sender, arrival);
CREATE INDEX inbox_by_topic ON inbox (topic, arrival) WHERE topic IS NOT NULL;
