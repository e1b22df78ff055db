"""Durable storage: engines, the single writer, the history, migrations and checks. Only this folder knows database drivers."""
