"""Consuming: consumers, raw fetch, offsets, isolation."""
