-- Of a sender's messages there was an index for those who look for them, who are few: every accept paid for it with a page of its own.
DROP INDEX message_by_sender;
