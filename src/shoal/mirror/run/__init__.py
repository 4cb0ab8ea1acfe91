"""Copying on real clusters: starts, transactions, checkpoints, the runner."""
