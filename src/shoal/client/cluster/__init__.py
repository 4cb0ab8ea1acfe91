"""What a client knows of its cluster, and which broker it asks."""
