"""Pages to look at a relay or a daemon with, and to act through: rendered on the server, signed in, and never writing by themselves."""
