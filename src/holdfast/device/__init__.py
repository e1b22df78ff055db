"""The device: one home's operation log. May touch its own database file, through `store`, and nothing else."""
