"""Ledgers: rows, segments, the commit log."""
