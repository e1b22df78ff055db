"""The device: one home, its operation log and its place in a mesh. May touch its home directory, and its relay through `wire`."""
