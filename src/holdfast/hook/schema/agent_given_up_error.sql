-- Why an adapter last went without a report: what went wrong since then is something else.
ALTER TABLE agent_follower ADD COLUMN given_up_error TEXT;

UPDATE agent_follower
SET given_up_error = CASE WHEN last_error_at = given_up_at THEN last_error ELSE 'it is not known any more why' END
WHERE given_up_at IS NOT NULL;
