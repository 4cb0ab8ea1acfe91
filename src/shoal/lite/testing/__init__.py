"""Fault injection into running nodes, and traces of their events."""
