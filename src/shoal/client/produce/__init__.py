"""Writing: producers, sessions, transactions, raw produce."""
