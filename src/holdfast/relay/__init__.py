"""The relay: accepts or refuses published events, stores them, and delivers them. May touch its own database and sockets."""
