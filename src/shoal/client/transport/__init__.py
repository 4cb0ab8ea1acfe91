"""Connections to brokers: handshake, security, versions, pool, backoff."""
