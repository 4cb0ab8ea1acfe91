"""Faults that are set on purpose in running nodes, and traces of what they did."""
