"""Checkpoints, the map from source to target offsets, and files for the audit."""
