"""The relay: says yes or no to what is published, keeps it, and hands it on. May touch its own database and its sockets."""
