"""The export: a history and other tables as Arrow streams, read by a separate process. Programs define which tables."""
