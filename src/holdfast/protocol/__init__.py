"""What is said and decided: codecs, tables, arithmetic. Pure: no I/O, clock, randomness or async; those come in as arguments."""
