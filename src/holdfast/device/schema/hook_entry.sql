-- A hook event is told of once when it came and once when it ended, however often it is reported.
CREATE UNIQUE INDEX history_by_hook_event ON history (event_id, kind)
    WHERE kind IN ('hook_received', 'hook_done', 'hook_dead', 'hook_coalesced');
