"""How batches get from source to target."""
