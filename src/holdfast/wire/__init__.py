"""HTTP and WebSocket servers and clients, on a network that is passed to them. Nothing here decides what is allowed."""
