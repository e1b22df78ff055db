"""The tables of an owner's lake: what was written to them and by them, in the clear, so that it can be searched."""
