"""Agent hooks: events of coding agents, on disk before anything else happens. May touch the hook database of its home, and the agents' settings when asked to."""
