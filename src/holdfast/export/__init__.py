"""The export: a history and the tables beside it as Arrow streams, read by a process of its own. Which tables is for others to say."""
