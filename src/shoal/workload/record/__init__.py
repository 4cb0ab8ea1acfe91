"""Ledgers: rows, segments, commit log."""
