"""Removal of data from logs: by retention, by compaction, and with a deleted topic."""
