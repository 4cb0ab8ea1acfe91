"""What is deleted from logs: by retention, by compaction, with their topic."""
