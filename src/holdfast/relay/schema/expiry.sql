-- The queues that a sweep has to look into, however many members there are. The column changes seldom: when a queue was empty,
-- when a message expires sooner than those before it, and when a sweep looked into it.
CREATE INDEX member_due ON member (expires_from, mesh, member) WHERE expires_from IS NOT NULL;
