"""Bytes on sockets: HTTP and WebSocket servers and clients, given a network to listen and connect on. Decides nothing."""
