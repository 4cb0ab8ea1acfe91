"""Copies batches from source to target: state machines without I/O."""
