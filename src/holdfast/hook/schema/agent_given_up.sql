-- When an adapter last went without a report: that is news for as long as reports are kept.
ALTER TABLE agent_follower ADD COLUMN given_up_at INTEGER;
