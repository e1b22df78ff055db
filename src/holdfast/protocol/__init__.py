"""The protocol: codecs, decision tables and arithmetic. Pure: no I/O, clock, randomness or async; those come in as arguments."""
