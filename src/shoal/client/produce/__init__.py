"""Producing: producers, sessions, transactions, raw produce."""
