"""What survives a crash: engines, the single writer, the history, migrations and checks. The only folder that knows a driver."""
